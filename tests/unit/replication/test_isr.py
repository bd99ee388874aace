"""Which followers are in sync, which could be, and what is committed while that changes."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import ErrorCode
from tailrace.replication.isr import UNBOUNDED, Follower, Followers
from tailrace.replication.partition import Partition
from tests.unit.replication.replicas import LAG_MS, Replicas, with_replicas
from tests.unit.replication.test_partition import refusal


@pytest.mark.parametrize(
    ("fetches", "caught_up_at"),
    [
        # When, from which offset, and where the leader's log ended then.
        ([(1.0, 10, 10)], 1.0),
        ([(1.0, 5, 10)], 0.0),
        ([(1.0, 5, 10), (2.0, 10, 20)], 1.0),
        ([(1.0, 5, 10), (2.0, 9, 20)], 0.0),
        ([(1.0, 10, 10), (2.0, 10, 20), (3.0, 19, 30)], 1.0),
        ([(1.0, 10, 10), (2.0, 10, 20), (3.0, 20, 30)], 2.0),
        ([(1.0, 10, 10), (2.0, 10, 20), (3.0, 15, 30), (4.0, 29, 40)], 1.0),
    ],
)
def test_a_follower_is_caught_up_as_of_the_fetch_whose_log_end_it_has_reached(
    fetches: list[tuple[float, int, int]], caught_up_at: float
) -> None:
    follower = Follower(0.0)
    for now, offset, leader_end in fetches:
        follower.fetched(offset, 0, leader_end, now)
    assert follower.caught_up_at == caught_up_at


def test_a_follower_at_the_leaders_log_end_is_caught_up_however_long_ago_it_fetched() -> None:
    follower = Follower(0.0)
    follower.fetched(10, 0, 10, 1.0)
    assert follower.is_caught_up(10, 1000.0, LAG_MS)
    assert follower.is_caught_up(11, 11.0, LAG_MS)
    assert not follower.is_caught_up(11, 11.001, LAG_MS)


def followers(isr: tuple[int, ...], *, epoch_start: int = 0) -> Followers:
    made = Followers((2, 3), isr, epoch_start, 0.0)
    made.update((2, 3), isr, {1: 1, 2: 1, 3: 1})
    return made


#: Where the leader's log starts.
LEADER_START = 4


def fetched(
    of: Followers,
    replica: int,
    offset: int,
    *,
    start: int = LEADER_START,
    end: int = 100,
    high_watermark: int = 0,
    epoch: int = 1,
) -> bool:
    return of.fetched(replica, epoch, offset, start, LEADER_START, end, high_watermark, 1.0)


def test_what_is_committed_is_the_least_that_the_isr_has() -> None:
    of = followers((1, 2, 3))
    assert of.committed_limit == -1
    fetched(of, 2, 7)
    assert of.committed_limit == -1
    fetched(of, 3, 5)
    assert of.committed_limit == 5
    of.update((2, 3), (1, 2), {2: 1, 3: 1})
    assert of.committed_limit == 7
    of.update((2, 3), (1,), {2: 1, 3: 1})
    assert of.committed_limit == UNBOUNDED


@pytest.mark.parametrize(("count", "limit"), [(1, 9), (2, 7), (3, 5), (4, -1)])
def test_up_to_where_so_many_have_everything(count: int, limit: int) -> None:
    of = followers((1, 2, 3))
    fetched(of, 2, 7)
    fetched(of, 3, 5)
    assert of.limit_of(count, 9) == limit


def test_both_the_old_and_the_new_isr_count_until_it_is_known_which_it_is() -> None:
    of = followers((1, 2))
    fetched(of, 2, 50)
    fetched(of, 3, 40)
    of.wait_for_change((1, 2, 3))
    assert of.committed_limit == 40
    of.wait_for_change((1,))
    assert of.committed_limit == 50
    of.wait_for_change(())
    assert of.committed_limit == 50


@pytest.mark.parametrize(
    ("offset", "end", "high_watermark", "epoch_start", "epoch", "joins"),
    [
        (100, 100, 100, 0, 1, True),
        (99, 100, 100, 0, 1, False),
        (100, 100, 100, 100, 1, True),
        (100, 100, 50, 101, 1, False),
        (100, 100, 100, 0, 2, False),
        (100, 100, 100, 0, 0, False),
    ],
    ids=["caught up", "behind", "at the epoch's start", "before the epoch's start", "newer than known", "older"],
)
def test_who_may_join(offset: int, end: int, high_watermark: int, epoch_start: int, epoch: int, joins: bool) -> None:
    of = followers((1, 2), epoch_start=epoch_start)
    assert fetched(of, 3, offset, end=end, high_watermark=high_watermark, epoch=epoch) is joins
    wanted = of.wanted(1, LEADER_START, end, high_watermark, 1.0, LAG_MS)
    assert wanted == (((1, 2, 3), {3: epoch}) if joins else None)


def test_a_follower_that_has_records_which_were_deleted_does_not_join_before_they_are_gone_for_good() -> None:
    of = followers((1, 2))
    assert not fetched(of, 3, 100, start=LEADER_START - 1)
    assert of.wanted(1, LEADER_START, 100, 0, 1.0, LAG_MS) is None
    assert fetched(of, 3, 100, start=LEADER_START)
    # Others are deleted before the change is made.
    assert of.wanted(1, LEADER_START + 1, 100, 0, 1.0, LAG_MS) is None
    assert of.wanted(1, LEADER_START, 100, 0, 1.0, LAG_MS) == ((1, 2, 3), {3: 1})


def test_a_process_that_has_ended_says_nothing_any_more() -> None:
    of = followers((1, 2, 3))
    fetched(of, 2, 9)
    of.update((2, 3), (1, 2, 3), {1: 1, 2: 2, 3: 1})
    fetched(of, 2, 50, epoch=1)
    assert of[2].log_end_offset == 9
    fetched(of, 2, 4, epoch=2)
    fetched(of, 2, 50, epoch=1)
    assert (of[2].log_end_offset, of[2].broker_epoch) == (4, 2)


def test_under_load_records_wait_for_a_follower_that_is_about_to_join() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=(1,))
        leader, second = replicas.leader, replicas.second
        wanted: list[Partition] = []
        leader.partition.on_isr_wanted = wanted.append
        for _ in range(6):
            await second.fetch_from(leader)
            leader.append()
        assert wanted == [leader.partition] * len(wanted) != []
        change = leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS)
        assert change is not None
        assert change.isr == (1, 2)
        assert leader.partition.high_watermark <= second.partition.log.end_offset

    with_replicas(test)


def test_a_follower_that_was_about_to_join_and_fell_silent_is_not_waited_for_long() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=(1,))
        leader, second = replicas.leader, replicas.second
        await second.fetch_from(leader)
        waiting = leader.partition.acknowledging.wait_for(leader.append())
        assert not waiting.done()
        await asyncio.sleep(LAG_MS / 1000 + 1)
        assert leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS) is None
        await waiting

    with_replicas(test)


def test_one_follower_falls_silent_and_another_joins_without_what_waited_for_the_first() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, third = replicas.all
        replicas.change(isr=(1,))
        followers = leader.partition.leading.followers
        assert followers is not None
        await second.fetch_from(leader)
        await asyncio.sleep(LAG_MS / 1000 + 1)
        # Not registered for a moment, so it is not about to join, but it has everything.
        followers.update((2, 3), (1,), {1: 1, 2: 1})
        await third.fetch_from(leader, rounds=2)
        followers.update((2, 3), (1,), {1: 1, 2: 1, 3: 1})
        leader.append()
        assert leader.partition.high_watermark == 0
        change = leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS)
        assert change is not None
        assert change.isr == (1, 3)
        assert leader.partition.high_watermark == third.partition.log.end_offset == 0

    with_replicas(test)


def test_a_follower_far_behind_holds_nothing_up() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(isr=(1,))
        leader, second = replicas.leader, replicas.second
        for _ in range(10):
            leader.append()
        for _ in range(5):
            await second.take(leader.answer(second, max_bytes=1))
            assert leader.partition.is_acknowledged(leader.append())

    with_replicas(test)


def test_a_change_that_is_not_known_to_be_made_counts_as_made_and_as_not_made() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, third = replicas.all
        replicas.change(isr=(1, 2))
        await replicas.fetch()
        change = leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS)
        assert change is not None
        assert change.isr == (1, 2, 3)
        leader.append()
        await second.fetch_from(leader, rounds=2)
        assert leader.partition.high_watermark == 0
        await third.fetch_from(leader, rounds=2)
        assert leader.partition.high_watermark == 1
        leader.partition.leading.isr_change_ended(change)
        assert leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS) == change

    with_replicas(test)


def test_a_removal_counts_when_the_image_has_it_and_not_before() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.append()
        await replicas.second.fetch_from(leader, rounds=2)
        await asyncio.sleep(LAG_MS / 1000 + 1)
        await replicas.second.fetch_from(leader)
        change = leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS)
        assert change is not None
        assert (change.isr, leader.partition.high_watermark) == ((1, 2), 0)
        leader.partition.leading.isr_change_ended(change)
        assert leader.partition.high_watermark == 0
        replicas.change(isr=(1, 2))
        assert leader.partition.high_watermark == 1
        assert leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS) is None

    with_replicas(test)


def test_strangers_and_impossible_offsets_move_nothing() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader.partition
        replicas.leader.append()
        for stranger in (1, 4):
            call = lambda stranger=stranger: leader.leading.follower_fetched(stranger, 1, 1, 0, 0.0)  # noqa: E731
            assert refusal(call) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        for replica in (2, 3):
            leader.leading.follower_fetched(replica, 1, 2, 0, 0.0)
        assert leader.high_watermark == 0
        replicas.change(leader=2)
        call = lambda: leader.leading.follower_fetched(2, 1, 1, 0, 0.0)  # noqa: E731
        assert refusal(call) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_replicas(test)


def test_an_incarnation_that_the_image_does_not_know_is_not_believed_and_shuts_nobody_out() -> None:
    of = followers((1, 2))
    fetched(of, 2, 5)
    for stranger in (2, 1 << 60):
        assert not fetched(of, 2, 100, epoch=stranger)
        assert not fetched(of, 3, 100, epoch=stranger)
    assert of.committed_limit == 5
    fetched(of, 2, 7)
    assert of.committed_limit == 7
    assert fetched(of, 3, 100)


def test_a_follower_that_lost_its_registration_counts_in_the_epoch_that_it_had() -> None:
    of = followers((1, 2))
    fetched(of, 2, 5)
    of.update((2, 3), (1, 2), {1: 1, 3: 1})
    fetched(of, 2, 7)
    assert of.committed_limit == 7
    # Back in another epoch, only that counts.
    of.update((2, 3), (1, 2), {1: 1, 2: 3, 3: 1})
    fetched(of, 2, 9)
    assert of.committed_limit == 7
    fetched(of, 2, 8, epoch=3)
    assert of.committed_limit == 8


def test_who_names_no_incarnation_counts_for_nothing() -> None:
    of = followers((1, 2))
    of.update((2, 3), (1, 2), {1: 1})
    fetched(of, 2, 50, epoch=-1)
    assert of.committed_limit == -1
