"""Consumers that ask for stable offsets wait for open transactions; all others read what is committed (KIP-447)."""

from __future__ import annotations

import asyncio

from tailrace.broker.assembly import Broker
from tailrace.broker.handlers import offset_fetch
from tailrace.broker.services import RequestContext
from tailrace.errors import ErrorCode
from tailrace.groups.commits import Committer
from tailrace.model import OFFSETS_TOPIC
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.unit.broker.clusters import Cluster
from tests.unit.broker.clusters import simulate as simulate_cluster
from tests.unit.groups.transactions import ONE, ORDERS, PAYMENTS, commit, end, restart, send, with_topics
from tests.unit.groups.world import GROUP, GroupWorld, committing, now

UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
STABLE_SINCE = 7
MANY_SINCE = 8


async def fetch(
    broker: Broker | None, version: int, *, require_stable: bool = True, by_name: bool = True
) -> dict[str, tuple[ErrorCode, int]]:
    """The error and the offset that a consumer is told for the first partition of each topic."""
    assert broker is not None
    topics = broker.metadata.image.topics
    context = RequestContext(version, None, "PLAINTEXT", "[::1]:1", lambda: None)
    if version < MANY_SINCE:
        names = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("orders", "payments")]
        request = OffsetFetchRequest(group_id=GROUP, topics=names if by_name else None, require_stable=require_stable)
        answered = (await offset_fetch.handle(broker.services, context, request)).topics
        return {
            topic.name: (ErrorCode(topic.partitions[0].error_code), topic.partitions[0].committed_offset)
            for topic in answered
        }
    wanted = [
        OffsetFetchRequestTopics(name=name, topic_id=topics[name].topic_id, partition_indexes=[0])
        for name in ("orders", "payments")
    ]
    asked = OffsetFetchRequestGroup(group_id=GROUP, topics=wanted if by_name else None)
    several = OffsetFetchRequest(
        groups=[asked, OffsetFetchRequestGroup(group_id="other", topics=None)], require_stable=require_stable
    )
    one, _ = (await offset_fetch.handle(broker.services, context, several)).groups
    return {
        topic.name: (ErrorCode(topic.partitions[0].error_code), topic.partitions[0].committed_offset)
        for topic in one.topics
    }


def test_a_partition_with_a_pending_offset_is_unstable_in_every_form_of_the_request() -> None:
    async def scenario(world: GroupWorld) -> None:
        await commit(world, 3)
        await commit(world, 4, PAYMENTS)
        assert await send(world, 5) is ErrorCode.NONE
        for _ in range(2):
            for version in range(STABLE_SINCE, 11):
                for by_name in (True, False):
                    found = await fetch(world.broker, version, by_name=by_name)
                    assert found == {"orders": UNSTABLE, "payments": (ErrorCode.NONE, 4)}
                    unasked = await fetch(world.broker, version, require_stable=False, by_name=by_name)
                    assert unasked == {"orders": (ErrorCode.NONE, 3), "payments": (ErrorCode.NONE, 4)}
            await restart(world)
        await end(world)
        assert await fetch(world.broker, 9) == {"orders": (ErrorCode.NONE, 5), "payments": (ErrorCode.NONE, 4)}

    with_topics(scenario)


def test_all_offsets_of_a_group_are_those_that_are_committed() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        for version in range(STABLE_SINCE, 11):
            assert await fetch(world.broker, version) == {"orders": UNSTABLE, "payments": (ErrorCode.NONE, -1)}
            assert await fetch(world.broker, version, by_name=False) == {}
        await end(world, is_commit=False)
        assert await fetch(world.broker, 10) == dict.fromkeys(("orders", "payments"), (ErrorCode.NONE, -1))

    with_topics(scenario)


def test_a_partition_is_unstable_until_every_transaction_is_over_even_if_a_later_commit_wins() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await send(world, 5) is ErrorCode.NONE
        assert await send(world, 6, ONE + 1) is ErrorCode.NONE
        await commit(world, 7)
        for producer_id in (ONE, ONE + 1):
            assert (await fetch(world.broker, 9))["orders"] == UNSTABLE
            await end(world, producer_id)
        assert (await fetch(world.broker, 9))["orders"] == (ErrorCode.NONE, 7)

    with_topics(scenario)


def test_a_pending_offset_of_a_deleted_topic_makes_nothing_unstable() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert world.broker is not None
        assert await send(world, 5) is ErrorCode.NONE
        await world.broker.metadata.delete_topic(world.broker.metadata.image.topics["orders"])
        await world.create_topic("orders", 1)
        assert (await fetch(world.broker, 9))["orders"] == (ErrorCode.NONE, -1)
        await commit(world, 1)
        await end(world)
        assert (await fetch(world.broker, 9))["orders"] == (ErrorCode.NONE, 1)

    with_topics(scenario)


async def located(cluster: Cluster) -> int:
    """The broker that coordinates the group, with its shard loaded; the topics are there too."""
    for name in ("orders", "payments"):
        await cluster.create(name, [(1, 2, 3)])
    await cluster.brokers[1].groups.locate(GROUP, "PLAINTEXT")
    topic = cluster.brokers[1].metadata.image.topics[OFFSETS_TOPIC]
    (state,) = topic.partitions
    await cluster.until(lambda: bool(list(cluster.brokers[state.leader].groups)))
    await cluster.until(lambda: len(cluster.state(1, OFFSETS_TOPIC).isr) == 3)
    return state.leader


def test_who_waits_for_an_answer_is_told_what_held_at_one_moment() -> None:
    async def test(cluster: Cluster) -> None:
        found = await located(cluster)
        broker = cluster.brokers[found]
        shard = broker.groups.shard(GROUP)
        assert await committing(shard.commit(GROUP, "", None, -1, -1, [(ORDERS, 3, 0, "")])) == {}
        assert await now(shard.commit_in_transaction(GROUP, Committer(), ONE, 0, [(ORDERS, 5, 0, "")])) == {}
        # Nobody has confirmed this yet, so a reader of the group waits.
        waiting = shard.commit(GROUP, "", None, -1, -1, [(PAYMENTS, 4, 0, "")])
        stable = asyncio.ensure_future(fetch(broker, 9))
        committed = asyncio.ensure_future(fetch(broker, 9, require_stable=False))
        await asyncio.sleep(0)
        assert not stable.done()
        ended = shard.end_transaction(ONE, 0, True, 0)
        late = shard.commit(GROUP, "", None, -1, -1, [(PAYMENTS, 9, 0, "")])
        assert await stable == {"orders": UNSTABLE, "payments": (ErrorCode.NONE, 4)}
        assert await committed == {"orders": (ErrorCode.NONE, 3), "payments": (ErrorCode.NONE, 4)}
        for result in (waiting, late):
            assert await committing(result) == {}
        await now(ended)
        assert await fetch(broker, 9) == {"orders": (ErrorCode.NONE, 5), "payments": (ErrorCode.NONE, 9)}

    simulate_cluster(test, offsets_topic_num_partitions="1")


def test_pending_offsets_survive_every_change_of_the_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        found = await located(cluster)
        for count in range(1, 7):
            shard = cluster.brokers[found].groups.shard(GROUP)
            assert await now(shard.commit_in_transaction(GROUP, Committer(), ONE, 0, [(ORDERS, count, 0, "")])) == {}
            found = found % 3 + 1
            await cluster.move(OFFSETS_TOPIC, leader=found)
            groups = cluster.brokers[found].groups
            await asyncio.sleep(1)
            assert (await fetch(cluster.brokers[found], 9))["orders"] == UNSTABLE
            is_commit = count % 3 != 0
            await now(groups.shard(GROUP).end_transaction(ONE, 0, is_commit, 0))
            assert (await fetch(cluster.brokers[found], 9))["orders"] == (ErrorCode.NONE, count - (not is_commit))

    simulate_cluster(test, offsets_topic_num_partitions="1")
