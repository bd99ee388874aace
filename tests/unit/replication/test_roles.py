"""A replica has the role in the image: leader, follower or neither; a new epoch restarts its role."""

from __future__ import annotations

import pytest

from tailrace.cluster.image import PartitionState
from tailrace.errors import ErrorCode, KafkaError
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.reading import Audience
from tests.unit.replication.reads import read
from tests.unit.replication.replicas import LAG_MS, Replicas, with_replicas
from tests.unit.replication.test_partition import Waiter, refusal

NOBODY = -1


@pytest.mark.parametrize(
    ("leader", "leads", "follows"),
    [(1, True, False), (2, False, True), (NOBODY, False, False)],
    ids=["leader", "follower", "nobody leads"],
)
def test_what_each_role_does(leader: int, leads: bool, follows: bool) -> None:
    async def test(replicas: Replicas) -> None:
        replica = replicas.leader
        replica.append(b"before")
        replicas.change(leader=leader)
        partition = replica.partition
        assert (partition.is_leader, partition.leader_id, partition.leader_epoch) == (leader == 1, leader, 1)
        for call, is_served in (
            (lambda: replica.append(), leads),
            (lambda: read(partition, 0, 1000, 1), leads),
            (lambda: read(partition, 0, 1000, 1, Audience.REPLICA), leads),
            (lambda: partition.following.append_fetched(memoryview(b""), 0, 0), follows),
        ):
            if is_served:
                call()
            else:
                assert refusal(call) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_replicas(test)


def test_before_the_image_has_said_anything_nothing_is_served() -> None:
    async def test(replicas: Replicas) -> None:
        await replicas.second.crash(power_cut=False)
        replicas.second.start()
        assert refusal(replicas.second.append) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refusal(lambda: read(replicas.second.partition, 0, 1000)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_replicas(test)


def test_an_older_image_changes_nothing() -> None:
    async def test(replicas: Replicas) -> None:
        old = replicas.state
        replicas.change(leader=2)
        replicas.leader.apply(old)
        assert not replicas.leader.partition.is_leader
        assert replicas.leader.partition.leader_epoch == 1

    with_replicas(test)


def test_the_same_image_again_changes_nothing() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        last = leader.append()
        waiting = leader.partition.acknowledging.wait_for(last)
        await replicas.fetch(rounds=1)
        before = (leader.partition.high_watermark, leader.partition.log.leader_epochs.entries)
        replicas.change()
        assert (leader.partition.high_watermark, leader.partition.log.leader_epochs.entries) == before
        assert not waiting.done()
        await replicas.fetch(rounds=1)
        await waiting

    with_replicas(test)


def test_who_waits_when_leadership_is_lost_is_told_and_readers_look_again() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        committed, appended = Waiter(), Waiter()
        leader.partition.watch(committed)
        leader.partition.watch_appends(appended)
        waiting = [leader.partition.acknowledging.wait_for(leader.append(), acks) for acks in (ACKS_ALL, 2, 3)]
        deleted = leader.partition.leading.wait_for_low_watermark(1)
        replicas.change(leader=2)
        for future in [*waiting, deleted]:
            error = future.exception()
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (committed.bytes > 1 << 60, appended.bytes > 1 << 60) == (True, True)
        with pytest.raises(KafkaError):
            await leader.partition.acknowledging.wait_for(0)

    with_replicas(test)


def test_a_leader_that_leads_on_in_a_new_epoch_keeps_those_who_wait_and_forgets_how_far_followers_are() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        last = leader.append()
        waiting = leader.partition.acknowledging.wait_for(last)
        await replicas.fetch(rounds=1)
        replicas.change(leader=1)
        await replicas.second.fetch_from(leader)
        assert not waiting.done()
        await replicas.third.fetch_from(leader)
        await waiting

    with_replicas(test)


def test_a_new_leader_says_where_older_epochs_ended_before_it_has_appended_anything() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.append(records=3)
        await replicas.fetch()
        leader.append(b"nobody else has it", records=2)
        replicas.change(leader=2)
        assert second.partition.log.leader_epochs.entries == ((0, 0), (1, 3))
        assert second.partition.diverging_epoch(0, 5) == (0, 3)
        await leader.fetch_from(second)
        assert (leader.partition.log.end_offset, leader.partition.following.fetch_position()) == (3, (3, 0))

    with_replicas(test)


def test_an_epoch_in_which_a_former_leader_appended_nothing_is_not_its_own() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.leader.append()
        replicas.change(leader=2)
        replicas.change(leader=1)
        assert replicas.leader.partition.log.leader_epochs.entries == ((0, 0), (2, 1))
        replicas.change(leader=3)
        assert replicas.leader.partition.log.leader_epochs.entries == ((0, 0),)
        assert replicas.leader.partition.following.fetch_position() == (1, 0)

    with_replicas(test)


def test_the_only_replica_commits_what_it_promises_and_needs_no_lease() -> None:
    async def test(replicas: Replicas) -> None:
        replica = replicas.leader
        replica.apply(PartitionState((1,), (1,), 1, 5))
        replica.holds_lease = False
        for acks in (0, 1, ACKS_ALL):
            last = replica.append(acks=acks)
            assert replica.partition.is_acknowledged(last, acks)
        assert replica.partition.leading.wanted_isr(0.0, LAG_MS) is None
        assert refusal(lambda: replica.append(acks=2)) is ErrorCode.INVALID_REQUIRED_ACKS

    with_replicas(test)


def test_a_partition_that_gets_more_replicas_waits_for_them_only_when_they_are_in_sync() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.apply(PartitionState((1,), (1,), 1, 5))
        leader.append()
        for replica in (leader, second):
            replica.apply(PartitionState((1, 2), (1,), 1, 5))
        assert leader.partition.is_acknowledged(leader.append())
        await second.fetch_from(leader, rounds=2)
        change = leader.partition.leading.wanted_isr(replicas.loop.time(), LAG_MS)
        assert change is not None
        assert (change.isr, change.added) == ((1, 2), {2: 1})
        assert not leader.partition.is_acknowledged(leader.append())
        await second.fetch_from(leader, rounds=2)
        assert leader.partition.high_watermark == 3

    with_replicas(test)


def test_a_new_leader_begins_with_the_high_watermark_it_knows() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, third = replicas.all
        for _ in range(4):
            leader.append()
        await replicas.fetch()
        await replicas.fetch(rounds=1)
        leader.append(b"only the second has it")
        await second.fetch_from(leader)
        replicas.change(leader=2, isr=(2, 3))
        assert (second.partition.high_watermark, second.partition.log.end_offset) == (4, 5)
        assert not second.partition.has_current_high_watermark
        await third.fetch_from(second)
        assert second.partition.high_watermark == 4
        await third.fetch_from(second)
        assert (second.partition.high_watermark, second.partition.has_current_high_watermark) == (5, True)

    with_replicas(test)


@pytest.mark.parametrize(
    ("claimed", "code"),
    [(-1, 6), (1, 6), (0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_follower_checks_the_epoch_before_it_refuses_a_request_for_the_leader(claimed: int, code: int) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.change(leader=2)
        partition = replicas.leader.partition
        for audience in (Audience.CLIENT, Audience.REPLICA):
            assert refusal(lambda audience=audience: read(partition, 0, 100, claimed, audience)) == code  # type: ignore[misc]

    with_replicas(test)
