"""A broker of archived topics: commits, reads beside the event loop, and producers that wait for the archiver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tailrace.archive import installation
from tailrace.archive.errors import ArchiveError, ArchiveUnreachableError
from tailrace.archive.layout import TopicArchive
from tailrace.broker.fetching import archive_reads
from tailrace.broker.fetching.archive_calls import check_archive, find_largest_timestamp, find_timestamp, read_batches
from tailrace.broker.upkeep.archive_access import require_readers
from tailrace.cluster.image import BrokerImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import read_header
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.disk import Volume
from tailrace.runtime.helper import HelperError
from tailrace.runtime.system.disk import SystemDisk
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest, ArchiveCommitResponse
from tailrace.wire.messages.archive_describe import (
    ArchiveDescribeRequest,
    ArchiveDescribeResponse,
    ArchivedPartition,
    DescribedArchive,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tailrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.unit.broker.brokers import TestedBroker, with_broker

PLACE = "/archive"
CONFIGS = {
    "tailrace_archive_enable": "true",
    "tailrace_archive_uri": PLACE,
    "local_retention_ms": "1",
    "file_delete_delay_ms": "0",
}


class FakeArchive:
    """A helper that answers for the library: what it is asked is written down, what it answers a test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        #: The offsets that the reads had to end below.
        self.limits: list[int] = []
        #: Why the archive cannot be read when the broker has a look at it.
        self.unreadable: Exception | None = None
        self.failure: Exception | None = None
        self.is_held = False
        self.restarts = 0
        self._go_on = asyncio.Event()

    def release(self) -> None:
        self.is_held = False
        self._go_on.set()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function is check_archive:
            if self.unreadable is not None:
                raise self.unreadable
            return 2
        archive, partition, where, *rest = arguments
        assert isinstance(archive, TopicArchive)
        assert (archive.uri, archive.topic, archive.manifest) == (PLACE, "orders", "first")
        self.asked.append((partition, where))
        if function is read_batches:
            self.limits.append(rest[-1])
        if self.is_held:
            await self._go_on.wait()
        if self.failure is not None:
            raise self.failure
        if function is find_timestamp:
            return (3, where + 1)
        if function is find_largest_timestamp:
            return (9, 1_000_009)
        assert function is read_batches
        return batch_at(where)

    async def run_for_bytes(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self.run(function, *arguments)

    async def run_on_disk(self, function: Callable[..., Any], *arguments: Any, bytes_per_second: Any = None) -> Any:
        raise HelperError("not for this")

    def restart(self) -> None:
        self.restarts += 1

    async def close(self) -> None:
        self.release()


def batch_at(offset: int, records: int = 2) -> bytes:
    """Batches of an archive from an offset on."""
    data = build_batch([NewRecord(b"archived")] * records)
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


async def describe(tested: TestedBroker, topic: str = "orders") -> DescribedArchive:
    response = await tested.ask(ArchiveDescribeRequest(topics=[topic]), 0, ArchiveDescribeResponse)
    return response.archives[0]


async def commit(tested: TestedBroker, end: int, **fields: Any) -> ArchiveCommitResponse:
    known = await describe(tested)
    request = ArchiveCommitRequest(
        **{
            "lineage": known.lineage,
            "expected_version": known.version,
            "uri": PLACE,
            "manifest": "first",
            "partitions": [ArchivedPartition(partition_index=0, start_offset=0, end_offset=end)],
            **fields,
        }
    )
    return await tested.ask(request, 0, ArchiveCommitResponse)


async def fetch(tested: TestedBroker, offset: int, max_wait_ms: int = 500) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="orders", partitions=[wanted])],
    )
    response = await tested.ask(request, 11, FetchResponse)
    return response.responses[0].partitions[0]


async def offsets(tested: TestedBroker, timestamp: int) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    response = await tested.ask(request, 11, ListOffsetsResponse)
    return response.topics[0].partitions[0]


async def archived(tested: TestedBroker) -> FakeArchive:
    """Ten records, all of which are in the archive and not in the log."""
    fake = FakeArchive()
    tested.broker.archive_reads._helper = fake
    await tested.create("orders", **CONFIGS)
    old = bytes(build_batch([NewRecord(b"value", timestamp=1_000_000 + number) for number in range(10)]))
    assert (await tested.produce(data=old)).error_code == 0
    assert (await commit(tested, 10)).error_code == 0
    await read_the_place(tested)
    await tested.broker.partitions.remove_expired()
    assert tested.broker.partitions.find("orders", 0).log.start_offset == 10
    return fake


async def read_the_place(tested: TestedBroker) -> None:
    """Have the broker see whether it can read its archives, as it does every few seconds."""
    access = tested.broker.archive_access
    await asyncio.gather(*access.look())
    access.look()


def test_a_commit_is_described(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", partitions=2, **CONFIGS)
        await tested.produce(records=3)
        before = await describe(tested)
        assert (before.version, before.is_enabled, before.uri, before.retention_ms) == (0, True, PLACE, -1)
        response = await commit(tested, 2)
        assert (response.error_code, response.version) == (0, 1)
        after = await describe(tested)
        assert (after.version, after.manifest) == (1, "first")
        assert [(each.start_offset, each.end_offset) for each in after.partitions] == [(0, 2), (-1, -1)]
        assert (await describe(tested, "none")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"expected_version": 1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"uri": "/elsewhere"}, ErrorCode.INVALID_CONFIG),
        ({"manifest": ""}, ErrorCode.INVALID_REQUEST),
        ({"lineage": UUID(int=5)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"end": 4}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (
            {"partitions": [ArchivedPartition(partition_index=1, start_offset=0, end_offset=0)]},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            {"partitions": [ArchivedPartition(partition_index=0, start_offset=0, end_offset=1)] * 2},
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_a_commit_that_does_not_fit_is_refused(tmp_path: Path, fields: dict[str, Any], code: ErrorCode) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", **CONFIGS)
        await tested.produce(records=3)
        response = await commit(tested, **{"end": 3, **fields})
        assert (response.error_code, bool(response.error_message)) == (code, True)
        assert (await describe(tested)).version == 0

    with_broker(tmp_path, test)


def test_a_leader_that_may_be_deposed_does_not_judge_what_is_committed(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders", **CONFIGS)
        await tested.produce(records=3)
        partition = tested.broker.partitions.find("orders", 0)
        assert partition.surely_leads
        partition.holds_lease = lambda: False
        assert not partition.surely_leads
        assert (await commit(tested, 4)).error_code == ErrorCode.NONE

    with_broker(tmp_path, test)


def test_a_topic_without_archive_takes_no_commit(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("orders")
        assert (await commit(tested, 0)).error_code == ErrorCode.INVALID_CONFIG

    with_broker(tmp_path, test)


def test_old_offsets_come_from_the_archive(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        found = await fetch(tested, 4)
        assert (found.error_code, found.log_start_offset, found.high_watermark) == (0, 0, 10)
        assert found.records is not None
        assert read_header(memoryview(bytes(found.records))).base_offset == 4
        assert (fake.asked, fake.limits) == ([(0, 4)], [10])
        assert (await offsets(tested, -2)).offset == 0
        assert (await offsets(tested, -4)).offset == 10
        assert (await offsets(tested, -5)).offset == 9
        assert (await offsets(tested, -6)).offset == 10
        assert (await offsets(tested, 1_000_002)).offset == 3
        largest = await offsets(tested, -3)
        assert (largest.offset, largest.timestamp) == (9, 1_000_009)
        await tested.produce()
        assert (await offsets(tested, -3)).offset == 10

    with_broker(tmp_path, test)


def test_a_read_that_takes_long_is_taken_by_a_later_fetch(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        fake.is_held = True
        assert not (await fetch(tested, 4, max_wait_ms=10)).records
        assert not (await fetch(tested, 4, max_wait_ms=0)).records
        assert tested.broker.archive_reads.waiting == 1
        waiting = asyncio.ensure_future(fetch(tested, 4, max_wait_ms=60_000))
        await asyncio.sleep(0)
        fake.release()
        assert (await waiting).records
        assert fake.asked == [(0, 4)]
        assert tested.broker.archive_reads.waiting == 0

    with_broker(tmp_path, test)


def test_the_broker_reads_ahead_for_sequential_readers_but_not_for_single_lookups(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        for offset in (3, 8):
            assert (await fetch(tested, offset)).records
        assert fake.asked == [(0, 3), (0, 8)]
        for offset in (0, 2, 4):  # batches of two
            assert (await fetch(tested, offset)).records
        await asyncio.sleep(0)
        assert fake.asked[2:] == [(0, 0), (0, 2), (0, 4), (0, 6)]
        assert (await fetch(tested, 6)).records
        # What comes next was begun, and after it there is nothing more in the archive.
        assert (await fetch(tested, 8)).records
        assert fake.asked[6:] == [(0, 8)]
        assert tested.broker.archive_reads.waiting == 0

    with_broker(tmp_path, test)


def test_nothing_is_kept_of_a_read_that_was_taken(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        fake.is_held = True
        reads = tested.broker.archive_reads
        partition = tested.broker.partitions.find("orders", 0)
        done = reads.take(partition, 4, 1 << 20, may_exceed=True)
        (read,) = reads._reads.values()
        assert read.done is done
        fake.release()
        await read.done
        assert len(read.batches) == len(batch_at(4))
        assert reads.take(partition, 4, 1 << 20, may_exceed=True) == batch_at(4)
        assert read.batches == b""

    with_broker(tmp_path, test)


def test_an_archive_that_cannot_be_read_is_retriable_and_not_asked_at_once_again(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        fake.failure = ArchiveUnreachableError("nobody answers")
        assert (await fetch(tested, 4)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch(tested, 4)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert fake.asked == [(0, 4)]
        assert (await offsets(tested, 1_000_002)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        # Whatever the library comes to is no reason to end.
        fake.failure = ZeroDivisionError("who would have thought")
        assert (await fetch(tested, 5)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert tested.broker.archive_reads.failures == 3
        fake.failure = None
        assert (await fetch(tested, 6)).records

    with_broker(tmp_path, test)


def test_a_read_that_hangs_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        fake.is_held = True
        for offset, restarts in ((4, 0), (5, 0), (6, 1), (7, 1)):
            assert (await fetch(tested, offset, max_wait_ms=30_000)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert fake.restarts == restarts

    monkeypatch.setattr(archive_reads, "_DEADLINE_SECONDS", 0.05)
    with_broker(tmp_path, test)


def test_where_no_processor_is_idle_the_other_process_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(tested: TestedBroker) -> None:
        busy = await archived(tested)
        reads = tested.broker.archive_reads
        starved = reads._idle_helper = FakeArchive()
        starved.is_held = True
        assert (await fetch(tested, 4, max_wait_ms=30_000)).records
        assert (len(starved.asked), len(busy.asked)) == (1, 1)
        # For a while that one is asked at once.
        assert (await fetch(tested, 5, max_wait_ms=30_000)).records
        assert (len(starved.asked), len(busy.asked)) == (1, 2)
        starved.is_held = False
        reads._busy_until = 0.0
        assert (await fetch(tested, 6, max_wait_ms=30_000)).records
        assert (len(starved.asked), len(busy.asked)) == (2, 2)

    monkeypatch.setattr(archive_reads, "_IDLE_PATIENCE_SECONDS", 0.05)
    with_broker(tmp_path, test)


def test_reads_at_once_are_few_and_those_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await archived(tested)
        fake.is_held = True
        for offset in range(6):
            assert not (await fetch(tested, offset, max_wait_ms=0)).records
        await asyncio.sleep(0)
        assert len(fake.asked) == 2
        assert tested.broker.archive_reads.waiting == 3
        fake.release()

    monkeypatch.setattr(archive_reads, "_MOST_WAITING", 3)
    with_broker(tmp_path, test)


class FullDisk(SystemDisk):
    """A disk that says how full it is."""

    used_percent = 50

    def volume(self, path: str) -> Volume:
        return Volume(100, 100 - self.used_percent)


def test_producers_are_refused_at_the_watermark_until_there_is_room(tmp_path: Path) -> None:
    disk = FullDisk()

    async def test(tested: TestedBroker) -> None:
        broker = tested.broker
        await tested.create("orders", **CONFIGS)
        await tested.create("others")
        old = bytes(build_batch([NewRecord(b"value", timestamp=1_000_000)] * 3))
        assert (await tested.produce(data=old)).error_code == 0
        disk.used_percent = 95
        await broker.archive_watch.look()
        assert (await tested.produce(data=old)).error_code == 0  # nothing waits for the archive yet
        await broker.partitions.remove_expired()
        await broker.archive_watch.look()
        assert broker.archive_watch.lags["orders"].offsets == 6
        assert broker.archive_watch.lags["orders"].oldest_ms > 0
        assert broker.archive_watch.held_count == 1
        refused = await tested.produce(data=old)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "not archived" in (refused.error_message or "")
        assert (await tested.produce("others")).error_code == 0
        broker.archive_reads._helper = FakeArchive()
        assert (await commit(tested, 6)).error_code == 0
        await read_the_place(tested)
        await broker.partitions.remove_expired()
        await broker.archive_watch.look()
        assert broker.archive_watch.lags["orders"] == (0, 0)
        assert (await tested.produce(data=old)).error_code == 0

    with_broker(tmp_path, test, disk=disk)


async def change_configs(tested: TestedBroker, **configs: str) -> tuple[int, str | None]:
    changes = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=2, resource_name="orders", configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = (await tested.ask(request, 1, IncrementalAlterConfigsResponse)).responses
    return result.error_code, result.error_message


async def old_records(tested: TestedBroker) -> FakeArchive:
    """Ten records whose local retention is over, all of them archived."""
    fake = FakeArchive()
    tested.broker.archive_reads._helper = fake
    await tested.create("orders", **CONFIGS)
    old = bytes(build_batch([NewRecord(b"value", timestamp=1_000_000 + number) for number in range(10)]))
    assert (await tested.produce(data=old)).error_code == 0
    assert (await commit(tested, 10)).error_code == 0
    return fake


def test_a_broker_that_cannot_read_the_archive_removes_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(tested: TestedBroker) -> None:
        fake = await old_records(tested)
        fake.unreadable = ArchiveError("numpy is not installed")
        log = tested.broker.partitions.find("orders", 0).log
        await tested.broker.partitions.remove_expired()
        assert log.start_offset == 0  # it has not had a look yet
        await read_the_place(tested)
        await tested.broker.partitions.remove_expired()
        assert log.start_offset == 0
        assert tested.broker.archive_access.unreadable_count == 1
        assert "cannot read the archive at /archive: numpy is not installed" in caplog.text
        request = ArchiveDescribeRequest(topics=["orders"], checks_reading=True)
        response = await tested.ask(request, 1, ArchiveDescribeResponse)
        assert response.archives[0].read_failure == "numpy is not installed"
        assert (await fetch(tested, 0)).error_code == 0
        fake.unreadable = None
        response = await tested.ask(request, 1, ArchiveDescribeResponse)
        assert response.archives[0].read_failure is None
        assert tested.broker.archive_watch.quarantined == {"orders": 2}
        await read_the_place(tested)
        await tested.broker.partitions.remove_expired()
        assert log.start_offset == 10

    with_broker(tmp_path, test)


def test_nothing_is_given_up_for_a_place_that_was_never_read(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        await old_records(tested)
        await read_the_place(tested)
        assert await change_configs(tested, tailrace_archive_uri="/another") == (0, None)
        tested.broker.archive_access.look()
        await tested.broker.partitions.remove_expired()
        assert tested.broker.partitions.find("orders", 0).log.start_offset == 0

    with_broker(tmp_path, test)


def test_archives_are_refused_where_a_broker_lacks_what_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_NEEDED", ("numpy", "no_such_package"))

    async def test(tested: TestedBroker) -> None:
        with pytest.raises(AssertionError, match=r"tailrace\[archive\]"):
            await tested.create("orders", **CONFIGS)
        await tested.create("orders")
        code, message = await change_configs(tested, **CONFIGS)
        assert code == ErrorCode.INVALID_CONFIG
        assert "pip install 'tailrace[archive]'" in (message or "")
        assert not (await describe(tested)).is_enabled

    with_broker(tmp_path, test)


def test_all_brokers_that_hold_a_topic_have_to_be_able_to_read_its_archive() -> None:
    able, unable, silent = (BrokerImage(number, (), reads_archives=number == 1) for number in (1, 2, 3))
    require_readers([able])
    with pytest.raises(KafkaError, match="Broker 2 cannot read archives"):
        require_readers([able, unable])
    with pytest.raises(KafkaError, match="Brokers 2, 3 cannot read archives"):
        require_readers([silent, unable, able])
    assert BrokerImage.from_bytes(able.to_bytes()).reads_archives
    assert not BrokerImage.from_bytes(unable.to_bytes()).reads_archives
    of_earlier_version = able.to_bytes().replace(b',"reads_archives":true', b"")
    assert not BrokerImage.from_bytes(of_earlier_version).reads_archives
