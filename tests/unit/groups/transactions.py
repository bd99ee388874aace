"""What producers do with the offsets of a group, and what its readers find: what tests of transactions start from."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.commits import Committer
from tailrace.model import TopicPartition
from tests.unit.groups.world import GROUP, GroupWorld, committing, now, simulate

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
#: The ids of two producers.
ONE, TWO = 1001, 1002
NOBODY = Committer()


async def send(
    world: GroupWorld,
    offset: int,
    producer_id: int = ONE,
    *,
    epoch: int = 0,
    who: Committer = NOBODY,
    places: Sequence[TopicPartition] = (ORDERS,),
    metadata: str = "",
    group_id: str = GROUP,
) -> ErrorCode:
    """Commit an offset in a producer's transaction; return the error, if any."""
    offsets = [(place, offset, 7, metadata) for place in places]
    try:
        refused = await now(world.shard.commit_in_transaction(group_id, who, producer_id, epoch, offsets))
    except KafkaError as error:
        return error.code
    return next(iter(refused.values()), ErrorCode.NONE)


async def end(world: GroupWorld, producer_id: int = ONE, *, is_commit: bool = True, epoch: int = 0) -> None:
    """End a producer's transaction, as its coordinator does."""
    await now(world.shard.end_transaction(producer_id, epoch, is_commit, 0))


async def commit(world: GroupWorld, offset: int, place: TopicPartition = ORDERS, group_id: str = GROUP) -> None:
    """Commit an offset without a transaction."""
    assert await committing(world.shard.commit(group_id, "", None, -1, -1, [(place, offset, 7, "")])) == {}


async def committed(world: GroupWorld, place: TopicPartition = ORDERS, group_id: str = GROUP) -> int | None:
    """The committed offset of a partition."""
    found = (await now(world.shard.committed(group_id))).get(place)
    return None if found is None else found.offset


def pending(world: GroupWorld, group_id: str = GROUP) -> dict[TopicPartition, list[int]]:
    """The offsets of open transactions."""
    found = world.shard.pending(group_id)
    return {place: [each.offset for each in offsets] for place, offsets in found.items()}


async def restart(world: GroupWorld) -> None:
    """Kill the broker and let the next one load the group from its records."""
    world.node.kill()
    await world.start()


def with_topics(scenario: Callable[[GroupWorld], Coroutine[Any, Any, None]], **settings: str) -> None:
    """Run a scenario on a started broker that has the topics."""

    async def run(world: GroupWorld) -> None:
        await world.create_topic(ORDERS.topic, 1)
        await world.create_topic(PAYMENTS.topic, 1)
        await scenario(world)

    simulate(run, **settings)
