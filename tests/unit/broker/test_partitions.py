"""The partitions of a broker across starts: none lost, none invented, and a bad disk costs no more than itself."""

from __future__ import annotations

import asyncio
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.runtime.disk import DiskFullError
from tailrace.runtime.system.disk import SystemDisk, SystemFile
from tailrace.storage.checkpoints import HIGH_WATERMARKS
from tailrace.stores.memory import MemoryStore
from tests.unit.broker.brokers import TestedBroker, with_broker
from tests.unit.broker.clusters import Cluster, simulate

TWO = ("one", "two")


class FaultyDisk(SystemDisk):
    """The real disk, but for paths that a test breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: str | None = None
        self.error: type[StorageError] = StorageError

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        self._check(path)
        return super().open(path, create=create)

    def replace_file(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self._check(path)
        super().replace_file(path, content, sync=sync)

    def make_directory(self, path: str) -> None:
        self._check(path)
        super().make_directory(path)

    def _check(self, path: str) -> None:
        if self.broken is not None and self.broken in path:
            raise self.error(f"{path} is broken by the test")


def code_of(broker: TestedBroker, topic: str, number: int = 0) -> ErrorCode:
    image = broker.broker.metadata.image.topics[topic]
    with pytest.raises(KafkaError) as by_id:
        broker.broker.partitions.find_by_id(image.topic_id, number)
    with pytest.raises(KafkaError) as by_name:
        broker.broker.partitions.find(topic, number)
    assert by_id.value.code is by_name.value.code
    return by_name.value.code


def test_records_survive_a_clean_restart_and_the_log_is_not_scanned(tmp_path: Path) -> None:
    store = MemoryStore()

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders", 3)
        for number in range(3):
            await broker.produce(records=number + 1, partition=number)

    async def second(broker: TestedBroker) -> None:
        assert all(directory.stopped_cleanly for directory in broker.broker.partitions.directories)
        for number in range(3):
            partition = broker.broker.partitions.find("orders", number)
            assert (partition.high_watermark, partition.leader_epoch) == (number + 1, 0)

    for test in (first, second):
        with_broker(tmp_path, test, store=store)


def test_after_a_crash_leader_epochs_are_new(tmp_path: Path) -> None:
    store = MemoryStore()

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce()

    async def second(broker: TestedBroker) -> None:
        assert broker.broker.partitions.find("orders", 0).leader_epoch == 1

    with_broker(tmp_path, first, store=store)
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    with_broker(tmp_path, second, store=store)


def test_a_directory_that_no_topic_owns_is_set_aside_whole_and_foreign_ones_are_left_alone(tmp_path: Path) -> None:
    store = MemoryStore()

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.create("payments")

    async def second(broker: TestedBroker) -> None:
        assert sorted(broker.broker.metadata.image.topics) == ["orders", "payments"]

    with_broker(tmp_path, first, store=store)
    data = tmp_path / "data"
    shutil.copytree(data / "orders-0", data / "left-behind-0")
    (data / "photos-2020").mkdir()
    (data / "photos-2020" / "cat.jpg").write_bytes(b"precious")
    with_broker(tmp_path, second, store=store)
    assert not (data / "left-behind-0").exists()
    (stray,) = data.glob("left-behind-0.*-stray")
    kept = {path.name for path in (data / "orders-0").iterdir() if path.suffix != ".snapshot"}
    assert kept <= {path.name for path in stray.iterdir()}
    assert (data / "photos-2020" / "cat.jpg").read_bytes() == b"precious"
    assert (data / "orders-0").exists()


def test_while_a_disk_is_offline_its_partitions_are_not_begun_anew_on_another(tmp_path: Path) -> None:
    store = MemoryStore()
    disk = FaultyDisk()

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders", 4)
        for number in range(4):
            assert (await broker.produce(partition=number)).error_code == ErrorCode.NONE

    async def with_one_disk(broker: TestedBroker) -> None:
        codes = [(await broker.produce(partition=number)).error_code for number in range(4)]
        assert sorted(codes) == [ErrorCode.NONE] * 2 + [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        lost = codes.index(ErrorCode.KAFKA_STORAGE_ERROR)
        assert code_of(broker, "orders", lost) is ErrorCode.KAFKA_STORAGE_ERROR
        await broker.create("new")
        assert (await broker.produce("new")).error_code == ErrorCode.NONE

    async def with_both_again(broker: TestedBroker) -> None:
        assert sum(broker.broker.partitions.find("orders", number).high_watermark for number in range(4)) == 6

    with_broker(tmp_path, first, store=store, disk=disk, directories=TWO)
    disk.broken = str(tmp_path / "two")
    with_broker(tmp_path, with_one_disk, store=store, disk=disk, directories=TWO)
    disk.broken = None
    with_broker(tmp_path, with_both_again, store=store, disk=disk, directories=TWO)


def test_a_disk_that_fails_takes_only_its_own_partitions_with_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 4)
        partitions = [broker.broker.partitions.find("orders", number) for number in range(4)]
        partitions[0].directory.fail(StorageError("the disk is gone"))
        for partition in partitions:
            answer = await broker.produce(partition=partition.partition.partition)
            failed = partition.directory is partitions[0].directory
            assert answer.error_code == (ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE)
        assert len({id(partition.directory) for partition in partitions}) == 2

    with_broker(tmp_path, test, directories=TWO)


def test_without_any_usable_disk_the_broker_does_not_start(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.broken = str(tmp_path)

    async def never(broker: TestedBroker) -> None:
        raise AssertionError("it started")

    with pytest.raises(StorageError, match="no log directory is usable"):
        with_broker(tmp_path, never, disk=disk)


def test_a_partition_that_cannot_be_opened_is_a_storage_error_and_is_recovered_later(tmp_path: Path) -> None:
    store = MemoryStore()
    disk = FaultyDisk()
    disk.error = DiskFullError

    async def first(broker: TestedBroker) -> None:
        for topic in ("orders", "payments"):
            await broker.create(topic)
            await broker.produce(topic, 3)

    async def while_full(broker: TestedBroker) -> None:
        assert code_of(broker, "orders") is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await broker.produce("payments")).base_offset == 3

    async def afterwards(broker: TestedBroker) -> None:
        assert not broker.broker.partitions.directories[0].stopped_cleanly
        assert (await broker.produce("orders")).base_offset == 3
        assert (await broker.produce("payments")).base_offset == 4

    with_broker(tmp_path, first, store=store, disk=disk)
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    with (tmp_path / "data" / "orders-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    disk.broken = "orders-0"
    with_broker(tmp_path, while_full, store=store, disk=disk)
    disk.broken = None
    with_broker(tmp_path, afterwards, store=store, disk=disk)


def raised_by(call: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value


def test_a_partition_that_could_not_be_opened_is_opened_by_itself_when_that_is_possible(tmp_path: Path) -> None:
    store = MemoryStore()
    disk = FaultyDisk()
    disk.error = DiskFullError

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce("orders", 3)

    async def while_full(broker: TestedBroker) -> None:
        partitions = broker.broker.partitions
        await partitions.reopen()
        assert code_of(broker, "orders") is ErrorCode.KAFKA_STORAGE_ERROR
        # A client that asks again and again is refused with the same error, which must not keep every request alive.
        refusals = [raised_by(lambda: partitions.find("orders", 0)) for _ in range(10)]
        assert refusals[0] is refusals[9]
        assert len(traceback.extract_tb(refusals[9].__traceback__)) < 5
        disk.broken = "payments-0"
        await broker.create("payments")
        await partitions.reopen()
        assert (await broker.produce("orders")).base_offset == 3
        assert code_of(broker, "payments") is ErrorCode.KAFKA_STORAGE_ERROR
        disk.broken = None
        await partitions.reopen()
        assert (await broker.produce("payments")).base_offset == 0
        assert partitions.offline_count == 0

    with_broker(tmp_path, first, store=store, disk=disk)
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    disk.broken = "orders-0"
    with_broker(tmp_path, while_full, store=store, disk=disk)


def test_a_directory_known_to_be_unusable_is_gone_on_without(tmp_path: Path) -> None:
    store = MemoryStore()

    async def first(broker: TestedBroker) -> None:
        for topic in ("orders", "payments"):
            await broker.create(topic)
            await broker.produce(topic, 3)

    async def without(broker: TestedBroker) -> None:
        lost = "orders" if (tmp_path / "two" / "orders-0").exists() else "payments"
        kept = {"orders": "payments", "payments": "orders"}[lost]
        assert code_of(broker, lost) is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await broker.produce(kept)).base_offset == 3
        await broker.broker.partitions.reopen()
        assert code_of(broker, lost) is ErrorCode.KAFKA_STORAGE_ERROR

    def take_offline(broker: TestedBroker) -> None:
        broker.broker.partitions.take_offline(str(tmp_path / "two"), StorageError("read-only"))

    with_broker(tmp_path, first, store=store, directories=TWO)
    before = sorted(path.name for path in (tmp_path / "two").rglob("*"))
    with_broker(tmp_path, without, store=store, directories=TWO, prepare=take_offline)
    assert sorted(path.name for path in (tmp_path / "two").rglob("*")) == before


def test_a_start_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    store = MemoryStore()

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=3)

    async def never(broker: TestedBroker) -> None:
        raise AssertionError("it started")

    async def again(broker: TestedBroker) -> None:
        assert broker.broker.partitions.find("orders", 0).high_watermark == 3

    other = MemoryStore()
    with_broker(tmp_path / "elsewhere", first, store=other, cluster_id="another-cluster")
    with_broker(tmp_path, first, store=store)
    data = tmp_path / "data"
    for is_clean in (True, False):
        if not is_clean:
            (data / ".kafka_cleanshutdown").unlink()
        before = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}
        for refused in (MemoryStore(), other):
            with pytest.raises(StorageError, match=r"belongs to|is empty but"):
                with_broker(tmp_path, never, store=refused)
        assert {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()} == before
    with_broker(tmp_path, again, store=store)


def test_a_topic_deleted_while_its_partitions_are_being_opened_leaves_none_behind(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        metadata = broker.broker.metadata
        topic: TopicImage = metadata.plan_topic("orders", 120, 1, {}, {})
        creating = asyncio.ensure_future(metadata.create_topic(topic))
        for _ in range(10):
            await asyncio.sleep(0)
            if "orders" in metadata.image.topics:
                break
        assert 0 < len(list(broker.broker.partitions)) < 120
        await metadata.delete_topic(metadata.image.topics["orders"])
        await creating
        assert list(broker.broker.partitions) == []
        with pytest.raises(KafkaError):
            broker.broker.partitions.find_by_id(topic.topic_id, 119)

    with_broker(tmp_path, test)
    left = [path.name for path in (tmp_path / "data").iterdir() if path.name.startswith("orders")]
    assert [name for name in left if not name.endswith("-delete")] == []


def test_retention_runs_over_every_partition(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2, retention_ms="0")
        for number in range(2):
            await broker.produce(partition=number)
        await asyncio.sleep(0.01)  # the records are older than 0 ms only when the clock has moved
        await broker.broker.partitions.remove_expired()
        logs = [broker.broker.partitions.find("orders", number).log for number in range(2)]
        assert [(log.start_offset, log.end_offset) for log in logs] == [(1, 1), (1, 1)]

    with_broker(tmp_path, test)


def test_a_partition_is_found_by_name_and_by_id_or_refused(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        partitions = broker.broker.partitions
        found = partitions.find("orders", 0)
        assert partitions.find_by_lineage(found.lineage, 0) is found
        assert partitions.find_by_id(broker.broker.metadata.image.topics["orders"].topic_id, 0) is found
        with pytest.raises(KafkaError) as caught:
            partitions.find("orders", 1)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(KafkaError) as caught:
            partitions.find_by_id(UUID(int=9), 0)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID

    with_broker(tmp_path, test)


def test_high_watermarks_of_partitions_with_several_replicas_are_saved_now_and_then_and_at_a_stop() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.create("single", [[1]])
        disk, path = cluster.disks[1], f"/data/{HIGH_WATERMARKS}"

        async def produce() -> None:
            for topic in ("orders", "single"):
                assert (await cluster.produce(1, b"value", topic=topic)).error_code == ErrorCode.NONE

        await produce()
        await cluster.until(lambda: disk.read_file(path) == b"0\n1\norders 0 1\n")
        fault = disk.fail(lambda written: written == path, "replace_file", DiskFullError, times=None)
        await produce()
        await asyncio.sleep(3)
        assert disk.read_file(path) == b"0\n1\norders 0 1\n"
        fault.lift()
        await cluster.until(lambda: disk.read_file(path) == b"0\n1\norders 0 2\n")
        await produce()
        await cluster.stop(1)
        assert disk.read_file(path) == b"0\n1\norders 0 3\n"

    simulate(test, brokers=2, replica_high_watermark_checkpoint_interval_ms="1000")
