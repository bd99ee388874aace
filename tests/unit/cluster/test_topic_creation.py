"""Topics that are created together: planned as if one after another, in few transactions, each refused on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tailrace.cluster.image import TopicImage
from tailrace.cluster.keys import TOPIC_NAMES, TOPICS, broker_key
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import MAX_OPERATIONS, Check, Entry, Unavailable, Write
from tailrace.errors import ErrorCode, KafkaError
from tailrace.stores.memory import MemorySpace, MemoryStore
from tests.unit.cluster.worlds import Member, World, broker, run

BROKERS = (1, 2, 3)


class WatchedStore(MemoryStore):
    """Counts what creations take, and answers badly where it is told to."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.transactions: list[int] = []
        #: Whether changes are made, and answered, and whether anything can be read.
        self.makes = self.answers = self.reads = True

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        self.transactions.append(len(checks) + len(writes))
        versions = await super().txn(checks, writes) if self.makes else None
        if not self.answers:
            raise Unavailable("was that a yes?")
        return versions

    async def get(self, key: str) -> Entry | None:
        if not self.reads:
            raise Unavailable("nobody there")
        return await super().get(key)


async def started(world: World) -> tuple[ClusterMetadata, WatchedStore]:
    await world.store.txn([], [Write(broker_key(number), broker(number).to_bytes()) for number in BROKERS])
    store = WatchedStore(world.space)
    member = Member(store, world.clock, 1)
    world.members.append(member)
    await member.metadata.load("cluster")
    await member.metadata.register_broker(broker(1))
    store.transactions.clear()
    return member.metadata, store


def plan(metadata: ClusterMetadata, *names: str, partitions: int = 3) -> list[TopicImage]:
    plans = metadata.plan_topics()
    return [plans.plan(name, partitions, 1, {}, {}) for name in names]


async def count_stored(world: World) -> tuple[int, int]:
    return len(await world.store.list(TOPICS)), len(await world.store.list(TOPIC_NAMES))


def test_many_topics_take_as_few_transactions_as_the_store_takes() -> None:
    async def test(world: World) -> None:
        metadata, store = await started(world)
        names = [f"t{number}" for number in range(60)]
        assert await metadata.create_topics(plan(metadata, *names)) == {}
        assert store.transactions == [MAX_OPERATIONS, MAX_OPERATIONS, 40]
        assert list(metadata.image.topics) == names
        assert await count_stored(world) == (60, 60)

    run(test)


def test_large_topics_are_not_put_into_one_transaction() -> None:
    async def test(world: World) -> None:
        metadata, store = await started(world)
        topics = [topic for name in "abcdef" for topic in plan(metadata, name, partitions=10_000)]
        assert sum(len(topic.to_bytes()) for topic in topics) > 512 << 10
        assert await metadata.create_topics(topics) == {}
        assert len(store.transactions) > 1
        assert list(metadata.image.topics) == list("abcdef")

    run(test)


def test_one_that_is_there_already_does_not_keep_the_others_from_being_created() -> None:
    async def test(world: World) -> None:
        metadata, _ = await started(world)
        topics = plan(metadata, "a", "taken", "b")
        other = plan(metadata, "taken")
        await MemoryStore(world.space).txn(
            [],
            [
                Write(f"{TOPIC_NAMES}/taken", str(other[0].topic_id).encode()),
                Write(f"{TOPICS}/{other[0].topic_id}", other[0].to_bytes()),
            ],
        )
        refusals = await metadata.create_topics(topics)
        assert {name: refusal.code for name, refusal in refusals.items()} == {"taken": ErrorCode.TOPIC_ALREADY_EXISTS}
        assert sorted(metadata.image.topics) == ["a", "b", "taken"]
        assert metadata.image.topics["taken"].topic_id == other[0].topic_id
        assert await count_stored(world) == (3, 3)

    run(test)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_creation_that_was_not_answered_is_looked_for(is_made: bool) -> None:
    async def test(world: World) -> None:
        metadata, store = await started(world)
        topics = plan(metadata, "a", "b")
        store.makes, store.answers = is_made, False
        refusals = await metadata.create_topics(topics)
        if is_made:
            assert refusals == {}
            assert list(metadata.image.topics) == ["a", "b"]
        else:
            assert {name: refusal.code for name, refusal in refusals.items()} == dict.fromkeys(
                "ab", ErrorCode.REQUEST_TIMED_OUT
            )
            assert not metadata.image.topics

    run(test)


def test_a_store_that_is_away_refuses_each_topic_and_not_the_whole_request() -> None:
    async def test(world: World) -> None:
        metadata, store = await started(world)
        topics = plan(metadata, "a", "b", "c")
        store.makes = store.answers = store.reads = False
        refusals = await metadata.create_topics(topics)
        assert {name: refusal.code for name, refusal in refusals.items()} == dict.fromkeys(
            "abc", ErrorCode.REQUEST_TIMED_OUT
        )

    run(test)


def test_topics_of_one_request_are_placed_as_if_they_came_one_after_another() -> None:
    async def test(world: World) -> None:
        metadata, _ = await started(world)
        together = plan(metadata, *"abcdef", partitions=1)
        leaders = Counter(topic.partitions[0].leader for topic in together)
        assert leaders == dict.fromkeys(BROKERS, 2)
        alone = []
        for name in "abcdef":
            topic = metadata.plan_topic(name, 1, 1, {}, {})
            await metadata.create_topic(topic)
            alone.append(topic)
        assert [topic.partitions for topic in alone] == [topic.partitions for topic in together]

    run(test)


def test_names_of_one_request_collide_as_names_of_topics_do() -> None:
    async def test(world: World) -> None:
        metadata, _ = await started(world)
        plans = metadata.plan_topics()
        plans.plan("a.b", 1, 1, {}, {})
        for name, code in (("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION), ("a.b", ErrorCode.TOPIC_ALREADY_EXISTS)):
            with pytest.raises(KafkaError) as caught:
                plans.plan(name, 1, 1, {}, {})
            assert caught.value.code is code
        plans.plan("a.c", 1, 1, {}, {})

    run(test)
