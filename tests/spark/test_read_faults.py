"""Reads survive restarts, kills, leader changes and broken connections.

Ranges are read as a task of Spark reads them, in this process, so that the fault comes exactly where it hurts: in the
middle of a range, behind a batch that was handed on and before the next.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailrace.pipeline.arrow import decoding
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import DataLossError, SourceError
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.fetching import FetchPlan, read_range
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import spark_schema
from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.brokers.cluster_process import ClusterProcess, coordination_store
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import CODECS, Record
from tests.support.topics import create_topic, delete_topic, eventually

COUNT = 2000


def plan_for(bootstrap: str, *, fail_on_data_loss: bool = True, seconds: float = 300, **client: str) -> FetchPlan:
    """Small fetches, so that a range takes many."""
    names = {name.replace("_", "."): value for name, value in client.items()}
    settings = {"bootstrap.servers": bootstrap, "max.partition.fetch.bytes": "4096", **names}
    return FetchPlan(
        parse_client_settings(settings), ("offset", "value"), RecordFilter(), fail_on_data_loss, int(seconds * 1000)
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 2048)


def produce(bootstrap: str, topic: str, *, count: int = COUNT, batch: int = 50, codec: str = "none") -> None:
    client = ConfluentClient(bootstrap)
    for first in range(0, count, batch):
        records = [Record(str(number).encode(), partition=0) for number in range(first, first + batch)]
        client.produce(topic, records, compression=codec)


def read_with_a_fault(plan: FetchPlan, wanted: OffsetRange, fault: Callable[[], None]) -> list[int]:
    """Read a range, with a fault after a part of it."""
    found: list[int] = []
    happened = False
    for batch in read_range(plan, wanted):
        found += batch.column("offset").to_pylist()
        assert batch.column("value").to_pylist() == [str(n).encode() for n in batch.column("offset").to_pylist()]
        if not happened and len(found) > wanted.size // 3:
            fault()
            happened = True
    assert happened, "the range was read in one go"
    return found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may kill."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_broker_that_comes_back_is_read_on_from(own: BrokerProcess, how: str) -> None:
    create_topic(own.bootstrap, "orders")
    produce(own.bootstrap, "orders")

    def fault() -> None:
        if how == "restarted":
            own.stop()
        else:
            own.kill()
        own.start()

    found = read_with_a_fault(plan_for(own.bootstrap), OffsetRange("orders", 0, 0, COUNT), fault)
    assert found == list(range(COUNT))


def test_a_broker_that_does_not_come_back_is_an_error_that_says_so(own: BrokerProcess) -> None:
    create_topic(own.bootstrap, "orders")
    produce(own.bootstrap, "orders")
    plan = plan_for(own.bootstrap, seconds=1)
    with pytest.raises(SourceError, match=r"cannot read offset \d+ of orders-0: .*gave up after 1 s"):
        read_with_a_fault(plan, OffsetRange("orders", 0, 0, COUNT), own.stop)


def test_a_broker_that_stops_answering_is_given_up_and_asked_again(own: BrokerProcess) -> None:
    create_topic(own.bootstrap, "orders")
    produce(own.bootstrap, "orders")
    plan = plan_for(own.bootstrap, request_timeout_ms="700")
    # Longer than the timeout of a request.
    resume = threading.Timer(1.5, os.kill, (own.pid, signal.SIGCONT))

    def fault() -> None:
        os.kill(own.pid, signal.SIGSTOP)
        resume.start()

    found = read_with_a_fault(plan, OffsetRange("orders", 0, 0, COUNT), fault)
    resume.join()
    assert found == list(range(COUNT))


def test_a_stream_goes_on_after_its_broker_was_killed_and_started_again(own: BrokerProcess) -> None:
    create_topic(own.bootstrap, "orders")
    options = {"kafka.bootstrap.servers": own.bootstrap, "subscribe": "orders", "startingOffsets": "earliest"}
    stream = TailraceSource(CaseInsensitiveDict(options)).streamReader(spark_schema(("offset", "value")))
    found: list[int] = []
    start = stream.initialOffset()
    for number in range(3):
        produce(own.bootstrap, "orders", count=100)
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end["orders"] == {"0": 100 * (number + 1)}
        partitions = stream.partitions(start, end)
        own.kill()
        own.start()
        for partition in partitions:
            for batch in stream.read(partition):
                found += batch.column("offset").to_pylist()  # type: ignore[union-attr]
        start = end
    stream.stop()
    assert found == list(range(300))


@pytest.mark.parametrize("codec", CODECS)
def test_a_range_may_begin_and_end_inside_of_a_batch(broker: BrokerProcess, topic: str, codec: str) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, count=500, codec=codec)
    plan = plan_for(broker.bootstrap)
    bounds = [0, 17, 18, 250, 333, 500]
    ranges = [OffsetRange(topic, 0, start, end) for start, end in pairwise(bounds)]
    found = [[n for batch in read_range(plan, one) for n in batch.column("offset").to_pylist()] for one in ranges]
    assert found == [list(range(one.start, one.end)) for one in ranges]


def test_what_compaction_took_away_is_no_lost_data(tmp_path: Path) -> None:
    config = {"log.cleaner.backoff.ms": "50"}
    with BrokerProcess(tmp_path / "data", config=config) as process:
        create_topic(
            process.bootstrap,
            "state",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.0",
            segment_bytes=str(1 << 20),
            min_compaction_lag_ms="0",
        )
        producer = ConfluentClient(process.bootstrap).producer(linger_ms="0")
        for number in range(600):
            producer.produce("state", bytes(5000), key=b"key %d" % (number % 7), partition=0)
            if number % 30 == 0:
                producer.flush()
        producer.flush()
        plan, wanted = plan_for(process.bootstrap), OffsetRange("state", 0, 0, 600)

        def read() -> list[int]:
            return [n for batch in read_range(plan, wanted) for n in batch.column("offset").to_pylist()]

        assert eventually(lambda: len(read()) < 300, timeout_seconds=300)
        found = read()
        assert found == sorted(set(found))
        # The newest record of each key is there.
        assert set(range(593, 600)) <= set(found)


@pytest.mark.parametrize("what", ["begins later", "is gone", "is new"])
def test_lost_records_fail_a_read_unless_that_is_accepted(
    broker: BrokerProcess, topic: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, count=500)
    wanted = OffsetRange(topic, 0, 100, 400)
    if what == "begins later":
        # In the middle of a batch.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in admin.delete_records([Place(topic, 0, 333)]).values():
            future.result(30)
        assert admin.list_offsets({Place(topic, 0): OffsetSpec.earliest()})[Place(topic, 0)].result(30).offset == 333
        expected, message = list(range(333, 400)), "offsets 100 to 332 of .* are lost: the log begins at 333"
    else:
        delete_topic(broker.bootstrap, topic)
        expected, message = [], "does not exist, so offsets 100 to 399 are lost"
        if what == "is new":
            create_topic(broker.bootstrap, topic)
            produce(broker.bootstrap, topic, count=50)
            message = "offsets 100 to 399 of .* are lost: the log ends at 50"
    with pytest.raises(DataLossError, match=message):
        list(read_range(plan_for(broker.bootstrap), wanted))
    lenient = plan_for(broker.bootstrap, fail_on_data_loss=False)
    assert [n for batch in read_range(lenient, wanted) for n in batch.column("offset").to_pylist()] == expected
    assert "continuing because of failOnDataLoss=false" in caplog.text


def test_what_is_no_broker_is_said_not_to_be_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        # Without a connection, nothing would wake it up.
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        brokers = Brokers(parse_client_settings({"bootstrap.servers": address}))
        with pytest.raises(SourceError, match=f"the server at {address} does not answer like a Kafka broker"):
            brokers.topics(("orders",))
        thread.join()
        brokers.close()


def test_one_address_of_several_is_enough(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    settings = parse_client_settings({"bootstrap.servers": f"127.0.0.1:{free_port()},{broker.bootstrap}"})
    brokers = Brokers(settings)
    assert list(brokers.topics((topic,))) == [topic]
    brokers.close()


def test_a_leader_that_is_killed_in_the_middle_of_a_read_is_replaced(tmp_path: Path) -> None:
    with coordination_store("local", tmp_path / "store") as url, ClusterProcess(tmp_path, url) as cluster:
        create_topic(cluster.bootstrap, "orders", min_insync_replicas="2")
        produce(cluster.bootstrap, "orders")
        leader = cluster.leader_of("orders", 0)
        found = read_with_a_fault(plan_for(cluster.bootstrap), OffsetRange("orders", 0, 0, COUNT), leader.kill)
        assert found == list(range(COUNT))
