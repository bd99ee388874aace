"""Commits belong to a topic and not to its name, also where nobody coordinated the group when the topic was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tailrace.broker.handlers import offset_fetch
from tailrace.broker.services import RequestContext
from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.cluster.keys import name_key, topic_key
from tailrace.cluster.store import Write
from tailrace.coordinator.journal import JournalRecord
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.committed_offset import CommittedOffset, commit_record
from tailrace.groups.counters import GroupCounters
from tailrace.groups.housekeeping import TOGETHER, Housekeeping
from tailrace.groups.offsets import Offsets
from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue, decode_key, decode_value, encode_key
from tailrace.groups.settings import GroupSettings
from tailrace.model import TopicPartition
from tailrace.testing.clock import SimClock
from tailrace.testing.loop import SimLoop
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.unit.groups.world import GROUP, GroupWorld, committing, simulate

ORDERS = TopicPartition("orders", 0)
NEW_ID = UUID(int=77, version=4)


def topic(world: GroupWorld) -> TopicImage:
    assert world.broker is not None
    return world.broker.metadata.image.topics["orders"]


async def commit(world: GroupWorld, offset: int, retention_ms: int = -1) -> None:
    assert await committing(world.shard.commit(GROUP, "", None, -1, retention_ms, [(ORDERS, offset, 0, "")])) == {}


async def fetched(world: GroupWorld, version: int, *, by_name: bool) -> tuple[ErrorCode, int]:
    """The error and the offset that a consumer of the topic is told."""
    assert world.broker is not None
    context = RequestContext(version, None, "PLAINTEXT", "[::1]:1", lambda: None)
    if version < 8:
        names = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0])] if by_name else None
        old = await offset_fetch.handle(
            world.broker.services, context, OffsetFetchRequest(group_id=GROUP, topics=names)
        )
        found = [one.committed_offset for each in old.topics for one in each.partitions]
        return ErrorCode(old.error_code), found[0] if found else -1
    wanted = OffsetFetchRequestTopics(name="orders", topic_id=topic(world).topic_id, partition_indexes=[0])
    asked = OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted] if by_name else None)
    (group,) = (await offset_fetch.handle(world.broker.services, context, OffsetFetchRequest(groups=[asked]))).groups
    found = [one.committed_offset for each in group.topics for one in each.partitions]
    return ErrorCode(group.error_code), found[0] if found else -1


async def recreate_elsewhere(world: GroupWorld, *, again: bool = True) -> None:
    """Delete a topic, and perhaps create another one of its name, while this broker is down."""
    former = topic(world)
    await world.node.stop()
    writes = [Write(topic_key(former.lineage), None), Write(name_key("orders"), None)]
    assert await world.node.store.txn([], writes) is not None
    if again:
        newer = replace(former, topic_id=NEW_ID, lineage=NEW_ID)
        writes = [Write(topic_key(NEW_ID), newer.to_bytes()), Write(name_key("orders"), str(NEW_ID).encode())]
        assert await world.node.store.txn([], writes) is not None
    await world.start()


def test_a_topic_deleted_while_nobody_coordinated_leaves_no_offsets_to_its_namesake() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        await commit(world, 500)
        assert await fetched(world, 9, by_name=True) == (ErrorCode.NONE, 500)
        await recreate_elsewhere(world)
        for version in (7, 9, 10):
            for by_name in (True, False):
                assert await fetched(world, version, by_name=by_name) == (ErrorCode.NONE, -1)
        # It is gone from the log as well.
        assert len(world.shard.offsets) == 0
        world.node.kill()
        await world.start()
        assert len(world.shard.offsets) == 0
        await commit(world, 3)
        assert await fetched(world, 10, by_name=True) == (ErrorCode.NONE, 3)

    simulate(scenario)


def test_a_topic_deleted_and_made_again_in_one_step_of_the_image_leaves_no_offsets_to_its_namesake() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        await commit(world, 500)
        former = topic(world)
        newer = replace(former, topic_id=NEW_ID, lineage=NEW_ID)
        writes = [
            Write(topic_key(former.lineage), None),
            Write(name_key("orders"), str(NEW_ID).encode()),
            Write(topic_key(NEW_ID), newer.to_bytes()),
        ]
        assert await world.node.store.txn([], writes) is not None
        await asyncio.sleep(1)
        assert topic(world).lineage == NEW_ID
        assert await fetched(world, 9, by_name=True) == (ErrorCode.NONE, -1)
        assert len(world.shard.offsets) == 0

    simulate(scenario)


def test_a_commit_without_an_id_is_of_the_topic_that_has_its_name_when_it_is_loaded_and_of_no_later_one() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        world.shard.keep([commit_record(GROUP, ORDERS, CommittedOffset(500))])
        assert await fetched(world, 9, by_name=True) == (ErrorCode.NONE, 500)
        await world.node.stop()
        await world.start()
        assert world.shard.offsets.of_group(GROUP)[ORDERS].lineage == topic(world).lineage
        assert await fetched(world, 9, by_name=True) == (ErrorCode.NONE, 500)
        await recreate_elsewhere(world)
        assert await fetched(world, 9, by_name=True) == (ErrorCode.NONE, -1)

    simulate(scenario)


def test_a_commit_without_an_id_goes_where_no_topic_has_its_name() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        world.shard.keep([commit_record(GROUP, ORDERS, CommittedOffset(500))])
        await recreate_elsewhere(world, again=False)
        assert len(world.shard.offsets) == 0

    simulate(scenario)


def test_an_offset_with_an_expiry_of_its_own_has_the_id_only_in_memory_and_goes_with_its_topic() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        await commit(world, 500, retention_ms=3_600_000)
        world.node.kill()
        await world.start()
        found = world.shard.offsets.of_group(GROUP)[ORDERS]
        assert (found.offset, found.lineage) == (500, topic(world).lineage)
        assert world.broker is not None
        await world.broker.metadata.delete_topic(topic(world))
        assert len(world.shard.offsets) == 0

    simulate(scenario)


class Table:
    """The groups of a shard without a journal."""

    def __init__(self) -> None:
        self.offsets = Offsets()
        self.batches: list[int] = []

    def group_ids(self) -> list[str]:
        return list(self.offsets.groups())

    def empty_since_ms(self, group_id: str) -> int | None:
        return -1

    def remove_group(self, group_id: str) -> bool:
        return False

    def keep(self, records: Sequence[JournalRecord]) -> None:
        self.batches.append(len(records))
        for key, value in records:
            decoded = decode_key(key)
            assert isinstance(decoded, OffsetCommitKey)
            self.offsets.replay(decoded, None if value is None else decode_value(decoded, value), 0, None)


def test_what_the_image_does_not_know_yet_is_neither_removed_nor_denied() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        table = Table()
        behind: list[Callable[[], None]] = []
        old = TopicImage("orders", UUID(int=1, version=4), (), {})
        image = ClusterImage("c", 0).with_topic_changes([old], [])
        housekeeping = Housekeeping(
            table.offsets,
            table,
            lambda: None,
            GroupSettings,
            lambda: image,
            behind.append,
            SimClock(loop),
            loop,
            GroupCounters(),
        )
        # Written by a coordinator that knew of the topic that has the name by now.
        found = CommittedOffset(500, lineage=NEW_ID)
        gone = CommittedOffset(7, lineage=UUID(int=2, version=4))
        table.offsets.take_one(GROUP, ORDERS, found)
        table.offsets.take_one(GROUP, TopicPartition("payments", 0), gone)
        housekeeping.begin()
        await asyncio.sleep(1)
        assert len(table.offsets) == 2
        with pytest.raises(KafkaError) as refusal:
            housekeeping.counts("orders", found)
        assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # A deletion is seen meanwhile, and says nothing of what is not known.
        housekeeping.topics_deleted()
        await asyncio.sleep(1)
        assert len(table.offsets) == 2
        image = image.with_topic_changes([replace(old, topic_id=NEW_ID, lineage=NEW_ID)], [old.lineage])
        assert housekeeping.counts("orders", found)
        with pytest.raises(KafkaError):
            housekeeping.counts("payments", gone)
        for then in behind:
            then()
        await asyncio.sleep(1)
        assert housekeeping.counts("orders", found)
        assert not housekeeping.counts("payments", gone)
        assert list(table.offsets.of_group(GROUP)) == [ORDERS]
        housekeeping.end()

    loop.run(scenario())


def test_that_a_topic_is_gone_is_asked_of_the_store() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        await commit(world, 500)
        # A commit of a topic that this broker does not know: only the store can say that it was deleted.
        unknown = CommittedOffset(9, lineage=NEW_ID)
        world.shard.keep([commit_record(GROUP, TopicPartition("payments", 0), unknown)])
        await world.node.stop()
        await world.start()
        assert list(world.shard.offsets.of_group(GROUP)) == [ORDERS]

    simulate(scenario)


MANY = 3 * TOGETHER + 7


async def largest_step(offsets: Offsets, left: int = 0) -> int:
    """How many offsets go at most between two turns of others."""
    largest = 0
    while (before := len(offsets)) > left:
        await asyncio.sleep(0)
        largest = max(largest, before - len(offsets))
    return largest


async def commit_many(world: GroupWorld) -> None:
    await world.create_topic("orders", 1)  # a shard does not ask how many partitions there are
    for first in range(0, MANY, TOGETHER):
        numbers = range(first, min(first + TOGETHER, MANY))
        places = [(TopicPartition("orders", number), 5, 0, "") for number in numbers]
        assert await committing(world.shard.commit(GROUP, "", None, -1, -1, places)) == {}
    assert len(world.shard.offsets) == MANY


def test_offsets_of_a_deleted_topic_go_in_turns() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit_many(world)
        assert world.broker is not None
        largest = asyncio.ensure_future(largest_step(world.shard.offsets))
        await world.broker.metadata.delete_topic(topic(world))
        assert 0 < await largest <= TOGETHER

    simulate(scenario)


def test_offsets_expire_in_turns() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit_many(world)
        await asyncio.sleep(3600)
        assert len(world.shard.offsets) == MANY
        largest = asyncio.ensure_future(largest_step(world.shard.offsets))
        await asyncio.sleep(0)
        world.shard._housekeeping._expire()
        assert len(world.shard.offsets) >= MANY - TOGETHER
        assert 0 < await largest <= TOGETHER
        assert world.shard.list_groups() == []

    simulate(scenario, offsets_retention_minutes="60", offsets_retention_check_interval_ms="36000000")


def test_a_group_with_many_offsets_is_deleted_in_turns_and_by_one_answer() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit_many(world)
        deleted = world.shard.delete_group(GROUP)
        assert isinstance(deleted, asyncio.Future)
        assert MANY - TOGETHER <= len(world.shard.offsets) < MANY
        assert world.shard.delete_group(GROUP) is deleted
        assert await largest_step(world.shard.offsets) <= TOGETHER
        assert await deleted is ErrorCode.NONE
        assert world.shard.list_groups() == []
        world.node.kill()
        await world.start()
        assert world.shard.list_groups() == []

    simulate(scenario)


def test_a_group_that_somebody_joins_while_it_is_deleted_keeps_the_rest() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit_many(world)
        deleted = world.shard.delete_group(GROUP)
        assert isinstance(deleted, asyncio.Future)
        joining = world.join()
        with pytest.raises(KafkaError) as refusal:
            await deleted
        assert refusal.value.code is ErrorCode.NON_EMPTY_GROUP
        assert len(world.shard.offsets) == MANY - TOGETHER
        assert (await joining).error is ErrorCode.NONE

    simulate(scenario)


def test_who_deletes_a_group_is_told_when_it_is_coordinated_elsewhere() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit_many(world)
        deleted = world.shard.delete_group(GROUP)
        assert isinstance(deleted, asyncio.Future)
        assert world.broker is not None
        world.broker.groups.close()
        with pytest.raises(KafkaError) as refusal:
            await deleted
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR

    simulate(scenario)


def test_a_commit_is_written_with_its_topics_id_as_kafka_writes_it() -> None:
    key, value = commit_record(GROUP, ORDERS, CommittedOffset(5, lineage=NEW_ID))
    assert key == encode_key(OffsetCommitKey(group=GROUP, topic="orders", partition=0))
    decoded = decode_value(OffsetCommitKey(), value)
    assert isinstance(decoded, OffsetCommitValue)
    assert (value[:2], decoded.topic_id) == (b"\x00\x04", NEW_ID)
