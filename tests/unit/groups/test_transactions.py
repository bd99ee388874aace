"""Offsets committed in transactions: pending until a marker, who may commit them, and what ends them otherwise."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic_group import ClassicGroup
from tailrace.groups.commits import Committer
from tailrace.groups.committed_offset import CommittedOffset, commit_record
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.groups.housekeeping import TOGETHER
from tailrace.model import Lineage, TopicPartition
from tailrace.runtime.outcome import Outcome
from tests.unit.groups.transactions import (
    ONE,
    ORDERS,
    PAYMENTS,
    TWO,
    commit,
    committed,
    end,
    pending,
    restart,
    send,
    with_topics,
)
from tests.unit.groups.world import GROUP, GroupWorld, now, subscription


def topic(world: GroupWorld, name: str = "orders") -> TopicImage:
    assert world.broker is not None
    return world.broker.metadata.image.topics[name]


async def recreate(world: GroupWorld) -> None:
    assert world.broker is not None
    await world.broker.metadata.delete_topic(topic(world))
    await world.create_topic("orders", 1)


# --- markers


def test_an_offset_of_a_transaction_takes_effect_with_its_commit() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit(world, 3)
        assert await send(world, 5, metadata="note") is ErrorCode.NONE
        assert (await committed(world), pending(world)) == (3, {ORDERS: [5]})
        await end(world)
        found = (await now(world.shard.committed(GROUP)))[ORDERS]
        assert (found.offset, found.leader_epoch, found.metadata) == (5, 7, "note")
        assert found.lineage == topic(world).lineage
        assert pending(world) == {}
        await restart(world)
        assert (await now(world.shard.committed(GROUP)))[ORDERS] == found

    with_topics(scenario)


def test_an_aborted_transaction_leaves_what_was_committed_before() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit(world, 3)
        assert await send(world, 5) is ErrorCode.NONE
        await end(world, is_commit=False)
        for _ in range(2):
            assert (await committed(world), pending(world)) == (3, {})
            await restart(world)

    with_topics(scenario)


def test_a_group_that_a_transaction_alone_names_is_there_until_it_is_aborted() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        for _ in range(2):
            assert [(group.group_id, group.state) for group in world.shard.list_groups()] == [(GROUP, "Empty")]
            described = world.shard.describe(GROUP)
            assert isinstance(described, ClassicGroup)
            assert not described.members
            await restart(world)
        await end(world, is_commit=False)
        assert world.shard.list_groups() == []
        with pytest.raises(KafkaError) as refusal:
            world.shard.describe(GROUP)
        assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    with_topics(scenario)


def test_a_marker_ends_the_transaction_of_its_producer_alone_and_may_be_repeated() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5, ONE) is ErrorCode.NONE
        assert await send(world, 6, TWO, places=[PAYMENTS]) is ErrorCode.NONE
        await end(world, 4711)
        assert pending(world) == {ORDERS: [5], PAYMENTS: [6]}
        for _ in range(3):
            await end(world, ONE)
            assert (await committed(world), pending(world)) == (5, {PAYMENTS: [6]})
        # An abort that comes too late changes nothing either.
        await end(world, ONE, is_commit=False)
        assert await committed(world) == 5
        await end(world, TWO, is_commit=False)
        await restart(world)
        assert (await committed(world), await committed(world, PAYMENTS), pending(world)) == (5, None, {})

    with_topics(scenario)


def test_a_marker_of_a_later_epoch_ends_what_a_fenced_producer_left() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5, epoch=3) is ErrorCode.NONE
        await end(world, epoch=4, is_commit=False)
        assert (await committed(world), pending(world)) == (None, {})
        assert await send(world, 6, epoch=4) is ErrorCode.NONE
        await end(world, epoch=5)
        await restart(world)
        assert await committed(world) == 6

    with_topics(scenario)


def test_pending_offsets_survive_the_loading_of_the_shard_and_end_after_it() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit(world, 1)
        assert await send(world, 5, ONE) is ErrorCode.NONE
        assert await send(world, 6, TWO, places=[PAYMENTS]) is ErrorCode.NONE
        await restart(world)
        assert (await committed(world), pending(world)) == (1, {ORDERS: [5], PAYMENTS: [6]})
        await end(world, ONE)
        await restart(world)
        assert (await committed(world), pending(world)) == (5, {PAYMENTS: [6]})

    with_topics(scenario)


def test_the_last_offset_of_a_transaction_in_a_partition_counts() -> None:
    async def scenario(world: GroupWorld) -> None:
        for offset in (5, 9, 7):
            assert await send(world, offset) is ErrorCode.NONE
        assert pending(world) == {ORDERS: [7]}
        await end(world)
        assert await committed(world) == 7

    with_topics(scenario)


@pytest.mark.parametrize("is_alone", [True, False], ids=["one", "several"])
def test_a_commit_that_is_written_later_is_not_replaced_by_an_older_transaction(is_alone: bool) -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        if is_alone:
            written: Outcome[None] = Outcome()
            world.shard.commit_one(GROUP, "", None, -1, ORDERS, topic(world).lineage, 8, 7, written)
            await written
        else:
            await commit(world, 8)
        assert (await committed(world), pending(world)) == (8, {ORDERS: [5]})
        await end(world)
        for _ in range(2):
            assert (await committed(world), pending(world)) == (8, {})
            await restart(world)
        # Nor is one that is written later still held back.
        assert await send(world, 9) is ErrorCode.NONE
        await end(world)
        assert await committed(world) == 9

    with_topics(scenario)


@pytest.mark.parametrize("reloads", [True, False], ids=["reloaded", "running"])
def test_of_several_transactions_the_record_that_is_last_in_the_log_wins(reloads: bool) -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5, ONE) is ErrorCode.NONE
        assert await send(world, 8, TWO) is ErrorCode.NONE
        if reloads:
            await restart(world)
        await end(world, TWO)
        if reloads:
            await restart(world)
        assert (await committed(world), pending(world)) == (8, {ORDERS: [5]})
        await end(world, ONE)
        assert await committed(world) == 8
        # A record of the same transaction that came after the commit does count.
        assert await send(world, 4, ONE) is ErrorCode.NONE
        await commit(world, 6)
        assert await send(world, 7, ONE) is ErrorCode.NONE
        await end(world, ONE)
        await restart(world)
        assert await committed(world) == 7

    with_topics(scenario)


def test_commits_of_the_same_turn_are_written_before_a_transaction() -> None:
    async def scenario(world: GroupWorld) -> None:
        first = world.shard.commit(GROUP, "", None, -1, -1, [(ORDERS, 3, 7, "")])[1]
        assert first is not None
        second = world.shard.commit_in_transaction(GROUP, Committer(), ONE, 0, [(ORDERS, 5, 7, "")])
        third = world.shard.end_transaction(ONE, 0, True, 0)
        await first
        await now(second)
        await now(third)
        assert await committed(world) == 5

    with_topics(scenario)


def test_a_full_disk_refuses_a_commit_and_a_marker_and_changes_nothing() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        world.node.disk.capacity_bytes = world.node.disk.used_bytes
        assert await send(world, 6) is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as refusal:
            await end(world)
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR
        assert (await committed(world), pending(world)) == (None, {ORDERS: [5]})
        world.node.disk.capacity_bytes = None
        await end(world)
        assert await committed(world) == 5

    with_topics(scenario)


# --- who may commit


def test_a_transaction_needs_a_producer_and_a_group() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5, -1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await send(world, 5, epoch=-1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await send(world, 5, group_id="") is ErrorCode.INVALID_GROUP_ID
        assert world.shard.list_groups() == []

    with_topics(scenario)


def test_metadata_that_is_too_long_is_refused_in_a_transaction_too() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert pending(world) == {}
        assert await send(world, 5, metadata="x" * 4096) is ErrorCode.NONE

    with_topics(scenario)


def test_a_classic_group_fences_members_that_it_has_replaced_or_moved_on_from() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 1, who=Committer("nobody", None, 3)) is ErrorCode.ILLEGAL_GENERATION
        one, two = await world.form(2)
        member = Committer(one.member_id, None, 1)
        assert await send(world, 1, who=member) is ErrorCode.NONE
        assert await send(world, 2, who=member._replace(generation=0)) is ErrorCode.ILLEGAL_GENERATION
        assert await send(world, 2, who=member._replace(generation=-1)) is ErrorCode.ILLEGAL_GENERATION
        assert await send(world, 2, who=Committer("nobody", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await send(world, 2, who=Committer("", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await send(world, 2, who=member._replace(instance_id="i")) is ErrorCode.UNKNOWN_MEMBER_ID
        # A client of before KIP-447 says nothing of itself.
        assert await send(world, 3) is ErrorCode.NONE
        rejoin = world.join(one.member_id)
        again = world.join(two.member_id)
        await rejoin
        await again
        # Nobody has the next plan yet: the old generation is over, and the new one may commit.
        assert await send(world, 4, who=member) is ErrorCode.ILLEGAL_GENERATION
        assert await send(world, 5, who=member._replace(generation=2)) is ErrorCode.NONE
        assert pending(world) == {ORDERS: [5]}

    with_topics(scenario)


def test_an_empty_classic_group_takes_commits_from_everybody_without_a_generation() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        assert await world.leave(one.member_id) is ErrorCode.NONE
        assert await send(world, 1) is ErrorCode.NONE
        assert await send(world, 2, who=Committer("former", None, -1)) is ErrorCode.NONE
        assert await send(world, 3, who=Committer(one.member_id, None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID

    with_topics(scenario)


def test_a_static_member_fences_its_former_incarnation() -> None:
    async def scenario(world: GroupWorld) -> None:
        (old,) = await world.form(1, instance_id="i")
        assert await send(world, 1, who=Committer(old.member_id, "i", 1)) is ErrorCode.NONE
        new = await world.join(instance_id="i")
        assert await send(world, 2, who=Committer(old.member_id, "i", 1)) is ErrorCode.FENCED_INSTANCE_ID
        assert await send(world, 3, who=Committer(new.member_id, "i", new.generation)) is ErrorCode.NONE

    with_topics(scenario)


def test_a_commit_in_a_transaction_does_not_show_that_the_member_lives() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        await asyncio.sleep(6)
        assert await send(world, 1, who=Committer(one.member_id, None, 1)) is ErrorCode.NONE
        await asyncio.sleep(6)
        assert await send(world, 2, who=Committer(one.member_id, None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID

    with_topics(scenario)


def test_a_group_of_the_newer_protocol_fences_members_of_another_epoch() -> None:
    async def scenario(world: GroupWorld) -> None:
        joining = HeartbeatCall("m", 0, rebalance_timeout_ms=60_000, topics=frozenset({"orders"}), owned={})
        joined = await world.consumer(joining)
        assert isinstance(joined, HeartbeatResult)
        assert await send(world, 1, who=Committer("m", None, joined.epoch)) is ErrorCode.NONE
        for epoch in (joined.epoch + 1, joined.epoch - 1, -1):
            assert await send(world, 2, who=Committer("m", None, epoch)) is ErrorCode.ILLEGAL_GENERATION
        assert await send(world, 2, who=Committer("x", None, joined.epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await send(world, 3) is ErrorCode.NONE
        left = await world.consumer(HeartbeatCall("m", -1))
        assert isinstance(left, HeartbeatResult)
        assert await send(world, 4, who=Committer("former", None, -1)) is ErrorCode.NONE
        assert await send(world, 5, who=Committer("m", None, joined.epoch)) is ErrorCode.UNKNOWN_MEMBER_ID

    with_topics(scenario)


# --- deletion


def test_no_marker_brings_a_deleted_group_back() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit(world, 3)
        assert await send(world, 5, ONE, places=[ORDERS, PAYMENTS]) is ErrorCode.NONE
        assert await send(world, 6, TWO, group_id="g") is ErrorCode.NONE
        assert await now(world.shard.delete_group(GROUP)) is ErrorCode.NONE
        assert world.shard.list_groups() == []
        await restart(world)
        await end(world, ONE)
        await end(world, TWO)
        for _ in range(2):
            assert world.shard.list_groups() == []
            await restart(world)

    with_topics(scenario)


def test_a_deletion_ends_the_pending_offsets_of_its_group_alone() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert world.broker is not None
        shard = world.shard
        other = next(name for name in map(str, range(100)) if world.broker.groups.shard(name) is shard)
        assert await send(world, 5) is ErrorCode.NONE
        assert await send(world, 6, group_id=other) is ErrorCode.NONE
        assert await now(shard.delete_group(GROUP)) is ErrorCode.NONE
        assert pending(world, other) == {ORDERS: [6]}
        await end(world)
        assert (await committed(world), await committed(world, group_id=other)) == (None, 6)

    with_topics(scenario)


def test_a_group_with_many_pending_offsets_is_deleted_in_turns() -> None:
    async def scenario(world: GroupWorld) -> None:
        places = [TopicPartition("orders", number) for number in range(3 * TOGETHER + 7)]
        assert await send(world, 5, places=places) is ErrorCode.NONE
        deleted = world.shard.delete_group(GROUP)
        assert isinstance(deleted, asyncio.Future)
        largest, left = 0, len(pending(world))
        while not deleted.done():
            await asyncio.sleep(0)
            largest, left = max(largest, left - len(pending(world))), len(pending(world))
        assert await deleted is ErrorCode.NONE
        assert 0 < largest <= TOGETHER
        await end(world)
        assert world.shard.list_groups() == []

    with_topics(scenario)


def test_deleted_offsets_take_those_of_open_transactions_with_them() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit(world, 3)
        assert await send(world, 5, ONE, places=[ORDERS, PAYMENTS]) is ErrorCode.NONE
        assert await send(world, 6, TWO) is ErrorCode.NONE
        assert await now(world.shard.delete_offsets(GROUP, [ORDERS])) == {ORDERS: ErrorCode.NONE}
        assert pending(world) == {PAYMENTS: [5]}
        await restart(world)
        await end(world, ONE)
        await end(world, TWO)
        assert (await committed(world), await committed(world, PAYMENTS)) == (None, 5)

    with_topics(scenario)


def test_a_transaction_continues_after_its_offset_was_deleted() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        assert await now(world.shard.delete_offsets(GROUP, [ORDERS])) == {ORDERS: ErrorCode.NONE}
        assert world.shard.list_groups() == []
        assert await send(world, 6) is ErrorCode.NONE
        await end(world)
        await restart(world)
        assert await committed(world) == 6

    with_topics(scenario)


def test_offsets_of_topics_that_members_read_are_not_deleted_while_they_are_pending() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1, protocols=[("range", subscription("orders"))])
        assert await send(world, 5, who=Committer(one.member_id, None, 1)) is ErrorCode.NONE
        results = await now(world.shard.delete_offsets(GROUP, [ORDERS]))
        assert results == {ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        assert pending(world) == {ORDERS: [5]}

    with_topics(scenario)


# --- expiry


def test_neither_an_offset_nor_a_group_expires_while_a_transaction_is_open() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        await world.leave(one.member_id)
        await commit(world, 3)
        await commit(world, 4, PAYMENTS)
        assert await send(world, 5) is ErrorCode.NONE
        await asyncio.sleep(3 * 3600)
        assert (await committed(world), await committed(world, PAYMENTS)) == (3, None)
        assert [group.group_id for group in world.shard.list_groups()] == [GROUP]
        await end(world, is_commit=False)
        await asyncio.sleep(1200)
        assert await committed(world) is None
        assert world.shard.list_groups() == []

    with_topics(scenario, offsets_retention_minutes="60")


def test_a_group_that_has_only_pending_offsets_does_not_expire() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        await world.leave(one.member_id)
        assert await send(world, 5) is ErrorCode.NONE
        await asyncio.sleep(3 * 3600)
        described = world.shard.describe(GROUP)
        assert isinstance(described, ClassicGroup)
        assert described.generation == 2
        await end(world)
        assert await committed(world) == 5

    with_topics(scenario, offsets_retention_minutes="60")


# --- topics


def test_a_pending_offset_of_a_deleted_topic_is_no_commit_of_its_namesake() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        await recreate(world)
        assert pending(world) == {}
        await end(world)
        await restart(world)
        assert world.shard.list_groups() == []

    with_topics(scenario)


def test_offsets_of_a_deleted_topic_do_not_take_those_of_its_namesake_with_them() -> None:
    async def scenario(world: GroupWorld) -> None:
        former = topic(world).lineage
        await recreate(world)
        # Written by a coordinator that did not know yet that the topic was deleted.
        stale = commit_record(GROUP, ORDERS, CommittedOffset(5, lineage=former))
        world.shard.keep([stale])
        await now(world.shard._operations.write_in_transaction(ONE, 0, [stale], None))
        assert await send(world, 8, TWO) is ErrorCode.NONE
        world.shard.topics_deleted()
        assert pending(world) == {ORDERS: [5, 8]}
        assert not world.shard.counts("orders", (await now(world.shard.committed(GROUP)))[ORDERS])
        await end(world, TWO)
        await end(world, ONE)
        for _ in range(2):
            assert await committed(world) == 8
            await restart(world)

    with_topics(scenario)


def test_offsets_of_a_deleted_topic_go_once_the_transaction_of_its_namesake_is_over() -> None:
    async def scenario(world: GroupWorld) -> None:
        world.shard.keep([commit_record(GROUP, ORDERS, CommittedOffset(4, lineage=Lineage(UUID(int=77, version=4))))])
        assert await send(world, 8) is ErrorCode.NONE
        world.shard.topics_deleted()
        assert await committed(world) == 4
        await end(world, is_commit=False)
        # With the next check for expired offsets.
        await asyncio.sleep(700)
        assert world.shard.list_groups() == []

    with_topics(scenario)


def test_a_commit_without_a_topic_id_gets_one_without_winning_over_an_open_transaction() -> None:
    async def scenario(world: GroupWorld) -> None:
        world.shard.keep([commit_record(GROUP, ORDERS, CommittedOffset(4))])
        assert await send(world, 8) is ErrorCode.NONE
        await restart(world)
        found = world.shard.offsets.of_group(GROUP)[ORDERS]
        assert (found.offset, found.lineage) == (4, topic(world).lineage)
        await end(world)
        assert await committed(world) == 8

    with_topics(scenario)


# --- the log


def test_compaction_of_the_offsets_topic_keeps_what_transactions_committed() -> None:
    async def scenario(world: GroupWorld) -> None:
        places = [TopicPartition("orders", number) for number in range(30)]
        assert await send(world, 5, ONE, places=places) is ErrorCode.NONE
        await end(world, ONE)
        deleted, often, *kept = places
        assert await send(world, 6, TWO, places=[deleted, PAYMENTS]) is ErrorCode.NONE
        assert await now(world.shard.delete_offsets(GROUP, [deleted])) == {deleted: ErrorCode.NONE}
        await end(world, TWO)
        for offset in range(200):
            await commit(world, offset, often)
        await asyncio.sleep(60)
        assert world.broker is not None
        assert world.broker.cleaner.runs > 0
        assert world.broker.cleaner.records_read - world.broker.cleaner.records_kept > 100
        expected = {PAYMENTS: 6, often: 199, **dict.fromkeys(kept, 5)}
        for _ in range(2):
            offsets = await now(world.shard.committed(GROUP))
            assert {place: found.offset for place, found in offsets.items()} == expected
            assert pending(world) == {}
            await restart(world)

    with_topics(scenario, log_cleaner_backoff_ms="1000", log_cleaner_min_cleanable_ratio="0.01")
