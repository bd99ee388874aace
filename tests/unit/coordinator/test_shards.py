"""Shards after a failover: loaded to the end of the new leader's log, and silent about uncommitted records."""

from __future__ import annotations

import asyncio
import traceback
from functools import partial

import pytest

from tailrace.coordinator.operations import Operations
from tailrace.coordinator.shard import Producer
from tailrace.coordinator.shards import Shards
from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.record import NewRecord, build_batch
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.runtime.disk import TooManyOpenFilesError
from tailrace.runtime.tasks import Tasks
from tests.unit.replication.replicas import Replica, Replicas, with_replicas


class Counters:
    """A shard of numbers by name, and everything that it was told of its log."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.numbers: dict[bytes, bytes | None] = {}
        self.told: list[tuple[int, bytes, Producer | None]] = []
        self.ended: KafkaError | None = None
        self.is_begun = False

    def replay(self, key: bytes, value: bytes | None, offset: int, producer: Producer | None) -> None:
        self.numbers[key] = value
        self.told.append((offset, key, producer))

    def replay_marker(self, producer: Producer, is_commit: bool, offset: int) -> None:
        self.told.append((offset, b"commit" if is_commit else b"abort", producer))

    def begin(self) -> None:
        self.is_begun = True

    def end(self, reason: KafkaError) -> None:
        self.ended = reason

    def write(self, key: bytes, value: bytes) -> asyncio.Future[None] | None:
        return self.operations.write([(key, value)], None)


def _raise(error: BaseException) -> None:
    raise error


def shards_of(replica: Replica) -> Shards[Counters]:
    return Shards(replica.clock, Tasks(_raise), Counters)


async def loaded(shards: Shards[Counters], replica: Replica) -> Counters:
    shards.lead(replica.partition)
    await asyncio.sleep(1)
    assert not shards.is_loading
    return shards.find(0)


def code_of(call: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


def test_a_new_leader_loads_what_its_followers_have_not_confirmed_and_tells_it_when_they_have() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, third = replicas.all
        first = await loaded(shards_of(leader), leader)
        committed = first.write(b"a", b"1")
        assert committed is not None
        await replicas.fetch(rounds=3)
        await committed
        uncommitted = first.write(b"a", b"2")
        await second.fetch_from(leader)
        assert uncommitted is not None
        assert not uncommitted.done()
        replicas.change(leader=2, isr=(2, 3))
        assert second.partition.high_watermark == 1
        shard = await loaded(shards_of(second), second)
        assert shard.numbers == {b"a": b"2"}
        read = shard.operations.read(b"2")
        assert isinstance(read, asyncio.Future)
        assert not read.done()
        await third.fetch_from(second, rounds=2)
        assert await read == b"2"

    with_replicas(test)


def test_reading_waits_for_the_commit_but_not_for_the_minimum_of_replicas() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        shard = await loaded(shards_of(leader), leader)
        leader.partition.min_insync_replicas = 2
        written = shard.write(b"a", b"1")
        read = shard.operations.read(b"1")
        assert written is not None
        replicas.change(isr=(1,))
        (error,) = await asyncio.gather(written, return_exceptions=True)
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not isinstance(read, bytes)
        assert await read == b"1"
        assert code_of(lambda: shard.write(b"a", b"2")) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    with_replicas(test)


def test_a_shard_of_an_earlier_epoch_writes_nothing() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        shards = shards_of(leader)
        shard = await loaded(shards, leader)
        replicas.change(leader=2)
        assert code_of(lambda: shard.write(b"a", b"1")) is ErrorCode.NOT_COORDINATOR
        replicas.change(leader=1)
        assert code_of(lambda: shard.write(b"a", b"1")) is ErrorCode.NOT_COORDINATOR
        again = await loaded(shards, leader)
        assert again is not shard
        assert shard.ended is not None
        again.write(b"a", b"1")

    with_replicas(test)


def test_leadership_that_is_lost_while_a_shard_is_loaded_ends_the_loading_without_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        shards = shards_of(leader)
        shard = await loaded(shards, leader)
        for number in range(100):
            shard.write(b"%d" % number, b"x" * 10_000)
        shards.resign(0)
        shards.lead(leader.partition)
        await asyncio.sleep(0)
        assert code_of(lambda: shards.find(0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        replicas.change(leader=2)
        await asyncio.sleep(1)
        assert code_of(lambda: shards.find(0)) is ErrorCode.NOT_COORDINATOR
        assert "Cannot load" not in caplog.text
        replicas.change(leader=1)
        again = await loaded(shards, leader)
        assert (len(again.numbers), again.is_begun) == (100, True)

    with_replicas(test)


PRODUCER = Producer(4711, 3, True)


def test_a_shard_that_the_process_has_no_descriptor_for_is_loaded_when_it_has() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        (await loaded(shards_of(leader), leader)).write(b"a", b"1")
        fault = leader.disk.fail(lambda path: path.endswith(".log"), "read", TooManyOpenFilesError, times=None)
        shards = shards_of(leader)
        shards.lead(leader.partition)
        await asyncio.sleep(5)
        assert code_of(lambda: shards.find(0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fault.lift()
        await asyncio.sleep(2)
        assert shards.find(0).numbers == {b"a": b"1"}

    with_replicas(test)


def test_who_asks_often_for_a_shard_that_cannot_be_loaded_is_always_refused_in_the_same_way() -> None:
    """The error must not keep every request alive that it was raised for."""

    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        (await loaded(shards_of(leader), leader)).write(b"a", b"1")
        leader.disk.fail(lambda path: path.endswith(".log"), "read")
        shards = shards_of(leader)
        shards.lead(leader.partition)
        await asyncio.sleep(1)
        for _ in range(10):
            with pytest.raises(KafkaError) as caught:
                shards.find(0)
            assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert len(traceback.extract_tb(caught.value.__traceback__)) < 5

    with_replicas(test)


def test_operations_and_loading_tell_a_shard_the_same_offsets_producers_and_markers() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, _ = replicas.all
        shard = await loaded(shards_of(leader), leader)
        operations = shard.operations
        operations.keep([(b"a", b"1"), (b"b", b"2")])
        operations.write_in_transaction(4711, 3, [(b"c", b"3"), (b"d", None)], None)
        operations.keep([(b"a", b"4")])
        operations.end_transaction(4711, 3, None, is_commit=True, coordinator_epoch=7)
        ended = operations.end_transaction(4711, 4, "ended", is_commit=False, coordinator_epoch=7)
        assert isinstance(ended, asyncio.Future)
        told = [
            (0, b"a", None),
            (1, b"b", None),
            (2, b"c", PRODUCER),
            (3, b"d", PRODUCER),
            (4, b"a", None),
            (5, b"commit", PRODUCER),
            (6, b"abort", Producer(4711, 4, True)),
        ]
        assert shard.told == told
        await replicas.fetch(rounds=3)
        assert await ended == "ended"
        replicas.change(leader=2)
        again = await loaded(shards_of(second), second)
        assert again.told == told
        # A coordinator's batches have no sequence, but their producer's epoch and its end are known everywhere.
        for each in replicas.all:
            ((producer_id, entry),) = each.partition.log.producers.entries()
            assert (producer_id, entry.epoch, entry.coordinator_epoch, entry.transaction_start) == (4711, 4, 7, -1)
        await leader.crash(power_cut=False)
        leader.start()
        assert (leader.partition.log.end_offset, len(leader.partition.log.producers)) == (7, 1)

    with_replicas(test)


def test_a_batch_of_an_idempotent_producer_is_told_as_no_part_of_a_transaction() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        batch = build_batch([NewRecord(b"1", b"a")], producer_id=9, producer_epoch=1, base_sequence=0)
        leader.partition.append_own(memoryview(batch), ACKS_ALL)
        shard = await loaded(shards_of(leader), leader)
        assert shard.told == [(0, b"a", Producer(9, 1, False))]

    with_replicas(test)


def test_a_transaction_is_refused_like_any_other_write_and_changes_nothing() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        shard = await loaded(shards_of(leader), leader)
        replicas.change(leader=2)
        operations = shard.operations
        assert code_of(lambda: operations.write_in_transaction(1, 0, [(b"a", b"1")], None)) is ErrorCode.NOT_COORDINATOR
        end = partial(operations.end_transaction, 1, 0, None, is_commit=True, coordinator_epoch=0)
        assert code_of(end) is ErrorCode.NOT_COORDINATOR
        assert shard.told == []

    with_replicas(test)


def test_a_timer_tries_again_what_the_journal_refused_and_ends_with_the_shard() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        shards = shards_of(leader)
        shard = await loaded(shards, leader)
        timers = shard.operations.timers
        leader.partition.min_insync_replicas = 2
        replicas.change(isr=(1,))
        tried: list[float] = []

        def write() -> None:
            tried.append(leader.loop.time())
            shard.write(b"a", b"1")

        timers.set("a", 100, write)
        await asyncio.sleep(1)
        assert len(tried) == 2
        assert shard.numbers == {}
        replicas.change(isr=(1, 2, 3))
        await asyncio.sleep(1)
        assert len(tried) == 3
        assert shard.numbers == {b"a": b"1"}
        assert "a" not in timers
        timers.set("a", 100, write)
        timers.set("a", 700, write)
        await asyncio.sleep(0.5)
        assert len(tried) == 3
        shards.resign(0)
        timers.set("b", 1, write)
        await asyncio.sleep(1)
        assert len(tried) == 3

    with_replicas(test)
