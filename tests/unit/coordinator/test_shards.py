"""Shards after a failover: loaded to the end of the new leader's log, and telling nothing that is not committed."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.coordinator.journal import Journal
from tailrace.coordinator.shards import Shards
from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.tasks import Tasks
from tests.unit.replication.replicas import Replica, Replicas, with_replicas


class Counters:
    """A shard of numbers by name."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.numbers: dict[bytes, bytes | None] = {}
        self.ended: KafkaError | None = None
        self.is_begun = False

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.numbers[key] = value

    def begin(self) -> None:
        self.is_begun = True

    def end(self, reason: KafkaError) -> None:
        self.ended = reason

    def write(self, key: bytes, value: bytes) -> asyncio.Future[None]:
        written = self.journal.append([(key, value)])
        self.replay(key, value)
        return written


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
        await replicas.fetch(rounds=3)
        await committed
        uncommitted = first.write(b"a", b"2")
        await second.fetch_from(leader)
        assert not uncommitted.done()
        replicas.change(leader=2, isr=(2, 3))
        assert second.partition.high_watermark == 1
        shard = await loaded(shards_of(second), second)
        assert shard.numbers == {b"a": b"2"}
        settled = shard.journal.settled()
        assert not settled.done()
        await third.fetch_from(second, rounds=2)
        await settled

    with_replicas(test)


def test_reading_waits_for_the_commit_but_not_for_the_minimum_of_replicas() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        shard = await loaded(shards_of(leader), leader)
        leader.partition.min_insync_replicas = 2
        written = shard.write(b"a", b"1")
        settled = shard.journal.settled()
        replicas.change(isr=(1,))
        error = written.exception()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        await settled
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
        assert "cannot be loaded" not in caplog.text
        replicas.change(leader=1)
        again = await loaded(shards, leader)
        assert (len(again.numbers), again.is_begun) == (100, True)

    with_replicas(test)
