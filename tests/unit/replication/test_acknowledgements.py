"""When a record may be acknowledged: by acks, by the ISR, by min.insync.replicas and by the leader's lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.storage.log_config import LogConfig
from tests.unit.replication.reads import read
from tests.unit.replication.replicas import LAG_MS, Replicas, with_replicas
from tests.unit.replication.test_partition import refusal


def error_of(future: asyncio.Future[None]) -> ErrorCode | None:
    error = future.exception() if future.done() else None
    assert error is None or isinstance(error, KafkaError)
    return None if error is None else error.code


@pytest.mark.parametrize(
    ("acks", "after"),
    [(1, 0), (2, 1), (3, 2), (ACKS_ALL, 2)],
)
def test_a_record_is_acknowledged_when_as_many_in_sync_replicas_have_it_as_asked_for(acks: int, after: int) -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        last = leader.append(acks=acks)
        waiting = leader.partition.acknowledging.wait_for(last, acks)
        confirmed = [waiting.done()]
        for follower in (replicas.second, replicas.third):
            await follower.fetch_from(leader)
            assert leader.partition.is_acknowledged(last, acks) is confirmed[-1]
            await follower.fetch_from(leader)
            confirmed.append(waiting.done())
            assert leader.partition.is_acknowledged(last, acks) is confirmed[-1]
        assert confirmed == [count >= after for count in range(3)]
        await waiting

    with_replicas(test)


@pytest.mark.parametrize("acks", [1, 2, ACKS_ALL])
def test_no_acknowledgement_comes_before_the_leaders_own_sync(acks: int) -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        waiting = leader.partition.acknowledging.wait_for(leader.append(acks=acks), acks)
        for follower in (replicas.second, replicas.third):
            follower.partition.following.append_fetched(memoryview(leader.answer(follower).data), 0, 0)
            leader.answer(follower)
        assert (waiting.done(), leader.partition.high_watermark) == (False, 0)
        await waiting
        assert leader.partition.high_watermark == 1

    with_replicas(test, LogConfig(index_interval_bytes=0, flush_messages=1))


def test_a_follower_does_not_ask_for_more_before_its_own_sync() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.leader.append()
        follower = replicas.second
        await follower.fetch_from(replicas.leader)
        assert not follower.partition.following.may_fetch
        await asyncio.sleep(1)
        assert follower.partition.following.may_fetch

    with_replicas(test, LogConfig(index_interval_bytes=0, flush_messages=1))


@pytest.mark.parametrize(
    ("acks", "isr", "minimum", "code"),
    [
        (ACKS_ALL, (1,), 2, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ACKS_ALL, (1, 2), 2, None),
        (ACKS_ALL, (1, 2), 3, ErrorCode.NOT_ENOUGH_REPLICAS),
        (1, (1,), 2, None),
        (0, (1,), 2, None),
        (2, (1, 2), 3, None),
        (2, (1,), 1, ErrorCode.NOT_ENOUGH_REPLICAS),
        (3, (1, 2), 1, ErrorCode.NOT_ENOUGH_REPLICAS),
        (4, (1, 2, 3), 1, ErrorCode.INVALID_REQUIRED_ACKS),
    ],
)
def test_what_cannot_be_acknowledged_is_not_appended(
    acks: int, isr: tuple[int, ...], minimum: int, code: ErrorCode | None
) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=isr)
        replicas.leader.partition.min_insync_replicas = minimum
        if code is None:
            replicas.leader.append(acks=acks)
        else:
            assert refusal(lambda: replicas.leader.append(acks=acks)) is code
        assert replicas.leader.partition.log.end_offset == (1 if code is None else 0)

    with_replicas(test)


def test_too_few_in_sync_replicas_are_told_in_the_words_of_kafka() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=(1, 3))
        replicas.leader.partition.min_insync_replicas = 3
        with pytest.raises(KafkaError) as caught:
            replicas.leader.append()
        assert str(caught.value) == (
            "The size of the current ISR : 2 is insufficient to satisfy the min.isr requirement of 3 for partition "
            "orders-0, live replica(s) broker.id are : 1, 3"
        )

    with_replicas(test)


def test_an_isr_that_shrank_below_the_minimum_meanwhile_is_told_after_the_append() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.partition.min_insync_replicas = 2
        waiting = leader.partition.acknowledging.wait_for(leader.append())
        committed = leader.partition.acknowledging.wait_until_committed(0)
        replicas.change(isr=(1,))
        assert error_of(waiting) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert committed.done()
        assert committed.exception() is None
        assert leader.partition.high_watermark == 1

    with_replicas(test)


def test_an_isr_that_shrank_but_has_the_minimum_still_acknowledges() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.partition.min_insync_replicas = 2
        waiting = leader.partition.acknowledging.wait_for(leader.append())
        await replicas.second.fetch_from(leader, rounds=2)
        assert not waiting.done()
        replicas.change(isr=(1, 2))
        await waiting

    with_replicas(test)


def test_a_producer_that_waits_for_more_replicas_than_are_in_sync_fails_at_once() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        three, two = (leader.partition.acknowledging.wait_for(leader.append(acks=acks), acks) for acks in (3, 2))
        replicas.change(isr=(1, 2))
        assert error_of(three) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert not two.done()
        await replicas.second.fetch_from(leader, rounds=2)
        await two

    with_replicas(test)


def test_replicas_out_of_sync_do_not_count_for_a_number_of_acks() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=(1, 2))
        leader = replicas.leader
        waiting = leader.partition.acknowledging.wait_for(leader.append(acks=2), 2)
        await replicas.third.fetch_from(leader, rounds=2)
        assert not waiting.done()
        await replicas.second.fetch_from(leader, rounds=2)
        await waiting

    with_replicas(test)


@pytest.mark.parametrize(
    ("acks", "isr", "unclean", "is_refused"),
    [
        (0, (1, 2, 3), False, True),
        (1, (1, 2, 3), False, True),
        (1, (1,), False, True),
        (2, (1, 2, 3), True, False),
        (ACKS_ALL, (1, 2, 3), True, False),
        (ACKS_ALL, (1,), False, False),
        (ACKS_ALL, (1,), True, True),
    ],
)
def test_without_a_lease_only_what_others_confirm_is_taken(
    acks: int, isr: tuple[int, ...], unclean: bool, is_refused: bool
) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=isr)
        leader = replicas.leader
        leader.partition.allows_unclean_election = unclean
        leader.holds_lease = False
        if is_refused:
            with pytest.raises(KafkaError) as caught:
                leader.append(acks=acks)
            assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert "coordination store" in str(caught.value)
        else:
            leader.append(acks=acks)
        leader.holds_lease = True
        leader.append(acks=acks)

    with_replicas(test)


def test_what_was_appended_under_a_lease_that_ended_since_is_not_acknowledged_by_the_leader_alone() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        alone = leader.partition.acknowledging.wait_for(leader.append(acks=1), 1)
        together = leader.partition.acknowledging.wait_for(leader.append())
        leader.holds_lease = False
        await asyncio.wait([alone])
        assert error_of(alone) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await replicas.fetch()
        await together
        assert read(leader.partition, 0, 1000) is not None

    with_replicas(test, LogConfig(index_interval_bytes=0, flush_messages=1))


def test_a_retry_is_acknowledged_under_the_same_terms_as_its_first_attempt() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        first = leader.append(producer=(7, 0, 0))
        leader.append()
        again = leader.append(producer=(7, 0, 0))
        assert (first, again) == (0, 0)
        waiting = leader.partition.acknowledging.wait_for(again)
        assert not waiting.done()
        await replicas.fetch()
        await waiting

    with_replicas(test)


def test_those_who_gave_up_do_not_pile_up_while_nothing_moves() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        last = leader.append()
        for _ in range(5000):
            leader.partition.acknowledging.wait_for(last).cancel()
        assert len(leader.partition.acknowledging.waiters[ACKS_ALL]._heap) <= 1000
        waiting = leader.partition.acknowledging.wait_for(last)
        await replicas.fetch()
        await waiting
        assert leader.partition.acknowledging.waiters == {}

    with_replicas(test)


def test_records_are_deleted_when_all_replicas_alive_or_in_sync_have_given_them_up() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        for _ in range(3):
            leader.append()
        await replicas.fetch()
        leader.partition.log.advance_start(2)
        waiting = leader.partition.leading.wait_for_low_watermark(2)
        assert (leader.partition.leading.low_watermark, waiting.done()) == (0, False)
        await replicas.second.fetch_from(leader, rounds=2)
        assert (replicas.second.partition.log.start_offset, waiting.done()) == (2, False)
        # The third is away, but may lead when it is back.
        leader.apply(replicas.state, {1: 1, 2: 1})
        assert not waiting.done()
        leader.apply(replace(replicas.state, isr=(1, 2)), {1: 1, 2: 1})
        await waiting
        assert leader.partition.leading.low_watermark == 2

    with_replicas(test)


def test_a_dead_followers_records_wait_for_the_isr_to_shrink() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        waiting = leader.partition.acknowledging.wait_for(leader.append())
        await replicas.second.fetch_from(leader, rounds=2)
        await asyncio.sleep(LAG_MS / 1000 - 1)
        assert leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS) is None
        await asyncio.sleep(2)
        change = leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS)
        assert change is not None
        assert (change.isr, change.added, change.leader_epoch) == ((1, 2), {}, 0)
        assert leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS) is None
        assert not waiting.done()
        replicas.change(isr=change.isr)
        await waiting

    with_replicas(test)
