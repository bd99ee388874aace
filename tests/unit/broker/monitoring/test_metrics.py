"""Metrics of a whole broker: right, parsable, and written in turns with other work."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tailrace.broker.monitoring.metrics import METRICS
from tailrace.broker.monitoring.monitoring import write_metrics
from tailrace.broker.monitoring.observed import Look
from tailrace.errors import ErrorCode, StorageError
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.system.process_usage import process_usage
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.produce import ProduceResponse
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker

MESSAGES_IN = "kafka_server_brokertopicmetrics_messagesin_total"
BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"
FAILED_PRODUCE = "kafka_server_brokertopicmetrics_failedproducerequests_total"
FAILED_FETCH = "kafka_server_brokertopicmetrics_failedfetchrequests_total"
REQUESTS = "kafka_network_requestmetrics_requests_total"
ERRORS = "kafka_network_requestmetrics_errors_total"
TIME = "kafka_network_requestmetrics_totaltimems"


class Scraped:
    """What one look at a broker gave."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self._samples[name, frozenset(labels.items())]

    def has(self, name: str, **labels: str) -> bool:
        return (name, frozenset(labels.items())) in self._samples

    def labels_of(self, name: str) -> list[Mapping[str, str]]:
        return [dict(labels) for sample, labels in self._samples if sample == name]


async def scrape(tested: TestedBroker, *, with_process: bool = False) -> Scraped:
    tested._connection.count_answered()  # as it does itself where requests come through it
    look = Look(tested.broker.observed, process_usage() if with_process else None)
    return Scraped(b"".join(await write_metrics(look)).decode())


def batch(records: int) -> bytes:
    now = SystemClock().wall_ms()
    return bytes(build_batch([NewRecord(b"value", timestamp=now) for _ in range(records)]))


def fetch(topic: str, offset: int, *, partition: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )


def test_records_and_bytes_are_counted_by_topic_and_in_all(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", 2)
        await tested.create("bills")
        first, second = batch(3), batch(5)
        await tested.produce("orders", data=first)
        await tested.produce("orders", data=second, partition=1)
        await tested.produce("bills", data=first, acks=1)
        response = await tested.ask(fetch("orders", 0), 11, FetchResponse)
        fetched = response.responses[0].partitions[0].records
        assert fetched is not None
        scraped = await scrape(tested)
        assert scraped.value(MESSAGES_IN, topic="orders") == 8
        assert scraped.value(MESSAGES_IN, topic="bills") == 3
        assert scraped.value(MESSAGES_IN) == 11
        assert scraped.value(BYTES_IN, topic="orders") == len(first) + len(second)
        assert scraped.value(BYTES_IN) == 2 * len(first) + len(second)
        assert scraped.value(BYTES_OUT, topic="orders") == len(fetched) == len(first)
        assert scraped.value(BYTES_OUT, topic="bills") == 0
        assert scraped.value("kafka_log_log_size", topic="orders", partition="1") == len(second)
        assert scraped.value("kafka_log_log_logendoffset", topic="orders", partition="1") == 5
        assert scraped.value("kafka_log_log_logstartoffset", topic="orders", partition="1") == 0
        assert scraped.value("kafka_log_log_numlogsegments", topic="orders", partition="1") == 1

    with_broker(tmp_path, test)


def test_a_duplicate_is_no_second_record(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders")
        now = SystemClock().wall_ms()
        data = bytes(build_batch([NewRecord(b"x", timestamp=now)], producer_id=7, producer_epoch=0, base_sequence=0))
        for _ in range(3):
            assert (await tested.produce("orders", data=data)).base_offset == 0
        assert (await scrape(tested)).value(MESSAGES_IN, topic="orders") == 1

    with_broker(tmp_path, test)


def test_the_sum_keeps_what_deleted_topics_counted(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders")
        await tested.produce("orders", 4)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")])
        await tested.ask(request, 6, DeleteTopicsResponse)
        scraped = await scrape(tested)
        assert scraped.value(MESSAGES_IN) == 4
        assert not scraped.has(MESSAGES_IN, topic="orders")
        assert scraped.labels_of("kafka_log_log_size") == []
        await tested.create("orders")
        await tested.produce("orders", 2)
        scraped = await scrape(tested)
        assert scraped.value(MESSAGES_IN) == 6
        assert scraped.value(MESSAGES_IN, topic="orders") == 2

    with_broker(tmp_path, test)


def test_refusals_are_counted_by_topic_by_api_and_by_error(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders")
        assert (await tested.produce("orders", data=b"no batch at all")).error_code
        assert (await tested.produce("nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert tested.answer(produce_request("nowhere", acks=0), 9) is None
        await tested.ask(fetch("orders", 99), 11, FetchResponse)
        await tested.ask(fetch("nowhere", 0), 11, FetchResponse)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="nowhere")])
        await tested.ask(request, 6, DeleteTopicsResponse)
        scraped = await scrape(tested)
        assert scraped.value(FAILED_PRODUCE, topic="orders") == 1
        assert scraped.value(FAILED_PRODUCE) == 3
        assert scraped.value(FAILED_FETCH, topic="orders") == 1
        assert scraped.value(FAILED_FETCH) == 2
        assert scraped.value(ERRORS, request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") == 2
        assert scraped.value(ERRORS, request="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
        assert scraped.value(ERRORS, request="Fetch", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
        assert scraped.value(ERRORS, request="DeleteTopics", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
        assert scraped.value(MESSAGES_IN) == 0

    with_broker(tmp_path, test)


def test_requests_are_counted_by_version_and_timed(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders")
        for version in (3, 3, 4):
            await tested.ask(ApiVersionsRequest(), version, ApiVersionsResponse)
        await tested.ask(produce_request("orders"), 9, ProduceResponse)
        scraped = await scrape(tested)
        assert scraped.value(REQUESTS, request="ApiVersions", version="3") == 2
        assert scraped.value(REQUESTS, request="ApiVersions", version="4") == 1
        assert not scraped.has(REQUESTS, request="ApiVersions", version="0")
        assert scraped.value(f"{TIME}_count", request="ApiVersions") == 3
        assert scraped.value(f"{TIME}_bucket", request="ApiVersions", le="+Inf") == 3
        assert scraped.value(f"{TIME}_count", request="Produce") == 1
        assert 0 < scraped.value(f"{TIME}_sum", request="Produce") < 60_000
        assert not scraped.has(f"{TIME}_count", request="ListOffsets")

    with_broker(tmp_path, test)


def test_a_request_that_waits_for_a_sync_is_timed_to_its_end(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", flush_messages="1")
        await tested.produce("orders")
        scraped = await scrape(tested)
        assert scraped.value(f"{TIME}_count", request="Produce") == 1
        (directory,) = tested.broker.partitions.directories
        syncs = scraped.value("tailrace_log_sync_duration_seconds_count", logDirectory=directory.path)
        assert syncs >= 1
        took = scraped.value("tailrace_log_sync_duration_seconds_sum", logDirectory=directory.path)
        assert took > 0
        assert scraped.value("tailrace_log_unsynced_bytes", logDirectory=directory.path) == 0

    with_broker(tmp_path, test)


def test_a_failed_directory_is_seen(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", 4)
        first, second = tested.broker.partitions.directories
        in_first = sum(1 for partition in tested.broker.partitions if partition.directory is first)
        assert 0 < in_first < 4
        first.fail(StorageError("the disk is gone"))
        scraped = await scrape(tested)
        assert scraped.value("kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert scraped.value("kafka_log_logmanager_logdirectoryoffline", logDirectory=first.path) == 1
        assert scraped.value("kafka_log_logmanager_logdirectoryoffline", logDirectory=second.path) == 0
        assert scraped.value("kafka_server_replicamanager_offlinereplicacount") == in_first
        assert scraped.value("kafka_controller_kafkacontroller_offlinepartitionscount") == in_first
        assert scraped.value("kafka_server_replicamanager_leadercount") == 4 - in_first
        assert scraped.value("kafka_controller_kafkacontroller_globalpartitioncount") == 4
        assert len(scraped.labels_of("kafka_log_log_size")) == 4 - in_first

    with_broker(tmp_path, test, directories=("one", "two"))


def test_every_metric_of_the_table_is_written_once_with_the_labels_it_names(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders")
        await tested.produce("orders")
        await tested.produce("nowhere")
        scraped = await scrape(tested, with_process=True)
        by_name = {family.name: family for family in scraped.families}
        assert len(by_name) == len(scraped.families) == len(METRICS)
        for metric in METRICS:
            about = metric.description
            # The parser takes the suffix of a counter off.
            family = by_name[about.name.removesuffix("_total")]
            assert family.type == about.kind.value
            assert family.documentation == about.meaning
            for sample in family.samples:
                named = set(sample.labels) - {"le"}
                # The sum over all topics has no topic.
                assert named == set(about.labels) or (about.labels == ("topic",) and not named)
                assert not math.isnan(sample.value)
        empty = [family.name for family in scraped.families if not family.samples]
        # There are no groups, no transactions and no archives, and nothing was compacted yet.
        assert empty == [
            "kafka_consumergroup_lag",
            "kafka_consumergroup_current_offset",
            "kafka_consumergroup_members",
            "tailrace_transactions_oldest_start_timestamp_seconds",
            "kafka_log_logcleanermanager_time_since_last_run_ms",
            "tailrace_archive_lag_offsets",
            "tailrace_archive_lag_ms",
            "tailrace_archive_end_offset",
            "tailrace_archive_quarantined_batches",
        ]

    with_broker(tmp_path, test)


def test_a_look_at_many_partitions_leaves_turns_to_others(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", 600)
        turns = 0
        longest = 0.0
        done = False

        async def others() -> None:
            nonlocal turns, longest
            last = time.thread_time()
            while not done:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest = max(longest, now - last)
                last = now
                turns += 1

        task = asyncio.get_running_loop().create_task(others())
        pieces = await write_metrics(Look(tested.broker.observed, None))
        done = True
        await task
        scraped = Scraped(b"".join(pieces).decode())
        assert len(scraped.labels_of("kafka_log_log_size")) == 600
        # Four metrics of 600 lines each, a hundred lines at a time.
        assert turns >= 24
        # In time of this thread, so that a busy machine does not count. It measures about 0.3 ms.
        assert longest < 0.05

    with_broker(tmp_path, test)


def test_topics_may_go_while_a_look_is_being_taken(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", 300)
        look = asyncio.get_running_loop().create_task(scrape(tested))
        await asyncio.sleep(0)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")])
        await tested.ask(request, 6, DeleteTopicsResponse)
        await tested.create("bills")
        await look
        assert (await scrape(tested)).value("kafka_controller_kafkacontroller_globaltopiccount") == 1

    with_broker(tmp_path, test)
