"""A partition as its leader sees it: nothing beyond the high watermark, no acknowledgement before its promise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tailrace.cluster.image import PartitionState
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import TopicPartition
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import Appended
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.replication.reads import read
from tests.unit.storage.logs import BATCH_BYTES, StandingClock, batch

NAME = TopicPartition("orders", 0)


class Waiter:
    """Somebody who counts what there is more to read."""

    def __init__(self) -> None:
        self.bytes = 0

    def more_to_read(self, size: int) -> None:
        self.bytes += size


class World:
    def __init__(self, loop: SimLoop, config: LogConfig) -> None:
        self.disk = SimDisk(Random(1))
        network = SimNetwork(loop, Random(2)).host("broker")
        runtime = Runtime(StandingClock(), self.disk, network, Random(3), SimHelper(self.disk, Random(9)))
        self.directory = LogDirectory("/data", runtime, background_bytes=1 << 30, background_ms=-1)
        self.directory.open()
        log = self.directory.open_partition(NAME, UUID(int=1), config)
        self.partition = Partition(NAME, UUID(int=1), log, self.directory, 1)
        self.partition.apply_state(PartitionState((1,), (1,), 1, 4), {}, 0.0)
        self.directory.on_promise = lambda _: self.partition.advance()

    def append(self, data: bytearray | None = None, acks: int = ACKS_ALL) -> int:
        appended = self.partition.append(memoryview(batch() if data is None else data), acks)
        assert isinstance(appended, Appended)
        return appended.last_offset


def run(test: Callable[[World], Coroutine[Any, Any, None]], flush_messages: int = 2**63 - 1, **settings: Any) -> None:
    loop = SimLoop(4)
    config = LogConfig(index_interval_bytes=0, flush_messages=flush_messages, **settings)
    loop.run(test(World(loop, config)))


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_what_is_promised_is_readable_and_acknowledged_at_once() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        last = world.append(batch(3))
        assert (partition.high_watermark, partition.is_acknowledged(last)) == (3, True)
        await partition.acknowledging.wait_for(last)
        part = read(partition, 0, 1000, leader_epoch=4)
        assert part is not None

    run(test)


def test_before_the_sync_nothing_is_readable_or_acknowledged() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        waiter = Waiter()
        partition.watch(waiter)
        last = world.append()
        acknowledged = partition.acknowledging.wait_for(last)
        assert (partition.high_watermark, read(partition, 0, 1000), partition.is_acknowledged(last)) == (0, None, False)
        assert (waiter.bytes, acknowledged.done()) == (0, False)
        await acknowledged
        assert (partition.high_watermark, waiter.bytes) == (1, BATCH_BYTES)
        partition.unwatch(waiter)
        await partition.acknowledging.wait_for(world.append())
        assert waiter.bytes == BATCH_BYTES

    run(test, flush_messages=1)


def test_a_retry_waits_for_the_same_promise_as_its_first_attempt() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        first = world.append(batch(producer=(7, 0, 0)))
        retry = world.append(batch(producer=(7, 0, 0)))
        assert first == retry == 0
        assert not partition.is_acknowledged(retry)
        await partition.acknowledging.wait_for(retry)
        assert partition.log.end_offset == 1

    run(test, flush_messages=1)


def test_a_retry_whose_offset_is_forgotten_waits_for_all_that_it_may_be_among() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        for number in range(8):
            world.append(batch(producer=(7, 0, number)))
        retry = partition.append(memoryview(batch(producer=(7, 0, 0))), -1)
        assert isinstance(retry, Appended)
        assert (retry.base_offset, retry.last_offset, retry.is_duplicate) == (-1, 2, True)
        assert not partition.is_acknowledged(retry.last_offset)
        await partition.acknowledging.wait_for(retry.last_offset)
        assert partition.log.promised_offset > 2
        assert partition.log.end_offset == 8

    run(test, flush_messages=1)


def test_too_few_in_sync_replicas_refuse_only_those_who_ask_for_all() -> None:
    async def test(world: World) -> None:
        world.partition.min_insync_replicas = 2
        assert refusal(world.append) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert world.append(acks=1) == 0

    run(test)


def test_what_was_sent_behind_a_refused_batch_is_not_taken_before_it() -> None:
    async def test(world: World) -> None:
        first, second = batch(producer=(7, 0, 0)), batch(producer=(7, 0, 1))
        world.partition.min_insync_replicas = 2
        assert refusal(lambda: world.append(bytearray(first))) is ErrorCode.NOT_ENOUGH_REPLICAS
        world.partition.min_insync_replicas = 1
        assert refusal(lambda: world.append(bytearray(second))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert world.append(bytearray(first)) == 0
        assert world.append(bytearray(second)) == 1

    run(test)


@pytest.mark.parametrize(
    ("claimed", "code"),
    [(-1, None), (4, None), (3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_readers_must_know_the_current_epoch_or_none(claimed: int, code: ErrorCode | None) -> None:
    async def test(world: World) -> None:
        if code is None:
            assert read(world.partition, 0, 10, claimed) is None
        else:
            assert refusal(lambda: read(world.partition, 0, 10, claimed)) is code

    run(test)


def test_a_reader_whose_log_parted_from_ours_is_told_where() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        partition.leader_epoch = 1
        world.append(batch(5))
        partition.leader_epoch = 4
        world.append(batch(5))
        assert partition.diverging_epoch(-1, 1000) is None
        assert partition.diverging_epoch(1, 5) is None
        assert partition.diverging_epoch(4, 10) is None
        assert partition.diverging_epoch(1, 6) == (1, 5)
        assert partition.diverging_epoch(3, 7) == (1, 5)
        assert partition.diverging_epoch(4, 11) == (4, 10)
        assert refusal(lambda: partition.diverging_epoch(5, 10)) is ErrorCode.OFFSET_OUT_OF_RANGE

    run(test)


def test_a_full_disk_refuses_a_batch_and_the_partition_goes_on() -> None:
    async def test(world: World) -> None:
        world.append()
        world.disk.fail(lambda path: path.endswith(".log"), "append", DiskFullError)
        assert refusal(world.append) is ErrorCode.KAFKA_STORAGE_ERROR
        assert world.directory.failure is None
        assert world.append() == 1

    run(test)


@pytest.mark.parametrize("operation", ["append", "read"])
def test_a_disk_error_takes_the_directory_offline(operation: str) -> None:
    async def test(world: World) -> None:
        for _ in range(2):
            world.append(batch(3))
        world.disk.fail(lambda path: path.endswith(".log"), operation, StorageError)
        call = world.append if operation == "append" else lambda: read(world.partition, 1, 1000)
        assert refusal(call) is ErrorCode.KAFKA_STORAGE_ERROR
        assert world.directory.failure is not None
        assert refusal(world.append) is ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal(lambda: read(world.partition, 0, 10)) is ErrorCode.KAFKA_STORAGE_ERROR

    run(test)


def test_when_it_closes_everybody_who_waits_is_told_why() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        waiter = Waiter()
        partition.watch(waiter)
        waiting = [partition.acknowledging.wait_for(world.append()) for _ in range(3)]
        waiting[1].cancel()
        gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.close(gone)
        assert [waiting[0].exception(), waiting[2].exception()] == [gone, gone]
        assert waiter.bytes > 1 << 60
        with pytest.raises(KafkaError):
            await partition.acknowledging.wait_for(0)
        assert refusal(world.append) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(test, flush_messages=1)


def test_the_high_watermark_never_goes_back() -> None:
    async def test(world: World) -> None:
        seen = 0
        for number in range(60):
            world.append(batch(1 + number % 3))
            await asyncio.sleep(0.003)
            assert seen <= world.partition.high_watermark <= world.partition.log.end_offset
            seen = world.partition.high_watermark
        assert seen > 0

    run(test, flush_messages=3)
