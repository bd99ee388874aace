"""Committed offsets: who may commit, what is refused, what survives, what expires."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.consumer import HeartbeatCall
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.runtime.disk import DiskFullError
from tailrace.runtime.outcome import Outcome
from tests.unit.groups.world import GROUP, GroupWorld, committing, now, simulate, subscription

ORDERS = TopicPartition("orders", 0)


async def commit(
    world: GroupWorld, offset: int, member_id: str = "", generation: int = -1, metadata: str | None = ""
) -> ErrorCode:
    try:
        refused = await committing(
            world.shard.commit(GROUP, member_id, None, generation, -1, [(ORDERS, offset, 7, metadata)])
        )
    except KafkaError as error:
        return error.code
    return refused.get(ORDERS, ErrorCode.NONE)


def lineage(world: GroupWorld) -> UUID:
    assert world.broker is not None
    return world.broker.metadata.image.topics["orders"].lineage


async def committed(world: GroupWorld) -> int | None:
    found = (await now(world.shard.committed(GROUP))).get(ORDERS)
    return None if found is None else found.offset


def test_a_consumer_without_a_group_keeps_its_offsets_here() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        assert await commit(world, 5, metadata="note") is ErrorCode.NONE
        found = (await now(world.shard.committed(GROUP)))[ORDERS]
        assert (found.offset, found.leader_epoch, found.metadata) == (5, 7, "note")
        assert await commit(world, 9, generation=3) is ErrorCode.GROUP_ID_NOT_FOUND
        assert [group.group_id for group in world.shard.list_groups()] == [GROUP]
        world.node.kill()
        await world.start()
        assert await committed(world) == 5

    simulate(scenario)


def test_an_offset_committed_alone_is_kept_like_any_other() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        (one,) = await world.form(1)
        assert await commit(world, 4, one.member_id, 1) is ErrorCode.NONE
        written: Outcome[None] = Outcome()
        world.shard.commit_one(GROUP, one.member_id, None, 1, ORDERS, lineage(world), 5, 8, written)
        await written
        found = (await now(world.shard.committed(GROUP)))[ORDERS]
        assert (found.offset, found.leader_epoch, found.metadata) == (5, 8, "")
        for member_id, generation, code in (
            ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
            (one.member_id, 2, ErrorCode.ILLEGAL_GENERATION),
        ):
            with pytest.raises(KafkaError) as refused:
                world.shard.commit_one(GROUP, member_id, None, generation, ORDERS, lineage(world), 6, 8, Outcome())
            assert refused.value.code is code
        world.node.kill()
        await world.start()
        assert (await now(world.shard.committed(GROUP)))[ORDERS] == found

    simulate(scenario)


def test_who_asks_for_offsets_sees_commits_that_are_still_to_be_written() -> None:
    async def scenario(world: GroupWorld) -> None:
        waiting = [world.shard.commit(GROUP, "", None, -1, -1, [(ORDERS, offset, 7, "")]) for offset in range(3)]
        found = await now(world.shard.committed(GROUP))
        assert found[ORDERS].offset == 2
        for each in waiting:
            assert await committing(each) == {}

    simulate(scenario)


def test_only_members_of_the_generation_commit() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = await world.form(2)
        assert await commit(world, 1, one.member_id, 1) is ErrorCode.NONE
        assert await commit(world, 2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(world, 2, "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(world, 2, one.member_id, 0) is ErrorCode.ILLEGAL_GENERATION
        rejoin = world.join(one.member_id)
        await asyncio.sleep(0.1)
        # While members gather the old generation may still say how far it came.
        assert await commit(world, 3, two.member_id, 1) is ErrorCode.NONE
        second = world.join(two.member_id)
        await rejoin
        await second
        assert await commit(world, 4, two.member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS
        assert await committed(world) == 3

    simulate(scenario)


def test_a_commit_shows_that_the_member_lives() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        for number in range(5):
            await asyncio.sleep(6)
            assert await commit(world, number, one.member_id, 1) is ErrorCode.NONE

    simulate(scenario)


def test_metadata_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    async def scenario(world: GroupWorld) -> None:
        other = TopicPartition("orders", 1)
        refused = await committing(
            world.shard.commit(GROUP, "", None, -1, -1, [(ORDERS, 1, -1, "x" * 5000), (other, 2, -1, None)])
        )
        assert refused == {ORDERS: ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert await committed(world) is None
        assert (await now(world.shard.committed(GROUP)))[other].offset == 2

    simulate(scenario)


def test_offsets_expire_only_when_the_group_is_empty_for_long_enough() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1, session_ms=300_000)
        assert await commit(world, 5, one.member_id, 1) is ErrorCode.NONE
        for _ in range(40):
            await asyncio.sleep(100)
            world.heartbeat(one.member_id, 1)
        assert await committed(world) == 5
        assert await world.leave(one.member_id) is ErrorCode.NONE
        await asyncio.sleep(1800)
        assert await committed(world) == 5
        await asyncio.sleep(3600)
        assert await committed(world) is None
        assert world.shard.list_groups() == []

    simulate(scenario, offsets_retention_minutes="60")


def test_offsets_of_subscribed_topics_and_groups_with_members_are_not_deleted() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1, protocols=[("range", subscription("orders"))])
        other = TopicPartition("payments", 0)
        await committing(
            world.shard.commit(GROUP, one.member_id, None, 1, -1, [(ORDERS, 1, -1, ""), (other, 1, -1, "")])
        )
        results = await now(world.shard.delete_offsets(GROUP, [ORDERS, other]))
        assert results == {ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, other: ErrorCode.NONE}
        assert set(await now(world.shard.committed(GROUP))) == {ORDERS}
        with pytest.raises(KafkaError) as refusal:
            world.shard.delete_group(GROUP)
        assert refusal.value.code is ErrorCode.NON_EMPTY_GROUP
        await world.leave(one.member_id)
        assert await now(world.shard.delete_group(GROUP)) is ErrorCode.NONE
        assert await committed(world) is None
        world.node.kill()
        await world.start()
        assert world.shard.list_groups() == []
        with pytest.raises(KafkaError) as refusal:
            world.shard.describe(GROUP)
        assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    simulate(scenario)


def test_a_full_disk_refuses_a_commit_and_forgets_nothing() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await commit(world, 5) is ErrorCode.NONE
        world.node.disk.capacity_bytes = world.node.disk.used_bytes
        assert await commit(world, 6) is ErrorCode.NOT_COORDINATOR
        assert await committed(world) == 5
        world.node.disk.capacity_bytes = None
        assert await commit(world, 7) is ErrorCode.NONE
        assert await committed(world) == 7

    simulate(scenario)


def in_next_epochs(topic: TopicImage) -> TopicImage:
    states = [replace(state, leader_epoch=state.leader_epoch + 1) for state in topic.partitions]
    return replace(topic, partitions=tuple(states))


def test_a_disk_that_fails_while_the_offsets_are_loaded_costs_its_directory_and_not_the_broker() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        assert await commit(world, 5) is ErrorCode.NONE
        assert world.broker is not None
        fault = world.node.disk.fail(lambda path: OFFSETS_TOPIC in path, "read", times=None)
        # Led again in a new epoch, as after a failover: the shards are loaded anew.
        metadata = world.broker.metadata
        await metadata.alter_topic(metadata.image.topics[OFFSETS_TOPIC], in_next_epochs)
        await asyncio.sleep(1)
        with pytest.raises(KafkaError) as refusal:
            world.broker.groups.shard(GROUP)
        assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.broker.partitions.directories[0].failure is not None
        await world.node.stop()
        fault.lift()
        await world.start()
        assert await committed(world) == 5

    simulate(scenario)


def test_offsets_are_served_once_a_disk_that_was_full_at_start_has_room() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        assert await commit(world, 5) is ErrorCode.NONE
        world.node.kill()
        fault = world.node.disk.fail(lambda path: OFFSETS_TOPIC in path, "open", DiskFullError, times=None)
        world.broker = await world.node.start()
        with pytest.raises(KafkaError) as refusal:
            world.broker.groups.shard(GROUP)
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR
        fault.lift()
        # Tried again every few seconds.
        await asyncio.sleep(10)
        assert await committed(world) == 5

    simulate(scenario)


def test_an_offset_may_be_kept_for_as_long_as_a_client_can_say() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        assert await committing(world.shard.commit(GROUP, "", None, -1, 2**63 - 1, [(ORDERS, 5, 7, None)])) == {}
        assert await committed(world) == 5

    simulate(scenario)


LONGEST = "\N{GREEK SMALL LETTER OMEGA}" * 16_000


def test_names_that_no_record_has_room_for_are_refused_and_leave_nothing_behind() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        shard = world.shard
        offsets = [(ORDERS, 5, 7, None)]
        assert await committing(shard.commit(LONGEST, "", None, -1, -1, offsets)) == {}
        joining = world.join(LONGEST, instance_id=LONGEST, client_id=LONGEST)
        assert (await joining).error is ErrorCode.UNKNOWN_MEMBER_ID
        too_long = LONGEST + "x"
        for ids in ({"client_id": too_long}, {"instance_id": too_long}, {"protocols": [(too_long, b"")]}):
            assert (await world.join(**ids)).error is ErrorCode.INVALID_REQUEST
        call = HeartbeatCall("m", 0, topics=frozenset({"orders"}), rebalance_timeout_ms=1000, owned={})
        for refused, code in (
            (lambda: shard.commit(too_long, "", None, -1, -1, offsets), ErrorCode.INVALID_GROUP_ID),
            (lambda: shard.consumer_heartbeat(too_long, call), ErrorCode.INVALID_GROUP_ID),
            (lambda: shard.consumer_heartbeat("g", call._replace(member_id=too_long)), ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(KafkaError) as caught:
                refused()
            assert caught.value.code is code
        assert [group.group_id for group in shard.list_groups()] == [LONGEST]

    simulate(scenario)
