"""The largest promised topic fits into every store, and a release that knows only some of its fields can change it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import MappingProxyType
from uuid import UUID

from tailrace.cluster.image import TOPIC_FORMAT_BY_NAME, PartitionState, TopicImage
from tailrace.cluster.keys import TOPICS, topic_key
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import MAX_TRANSACTION_BYTES, Write
from tailrace.runtime.tasks import Tasks
from tests.contract.follower import Follower
from tests.contract.stores import Stores

TOPIC_ID = UUID(int=7)
PARTITIONS = 10_000
REPLICAS = 6
#: Ids of four digits, and more brokers than have names of one byte.
BROKERS = range(1000, 1200)


def moving_topic() -> TopicImage:
    """Every partition is moving, no two have the same replicas, and each ISR has another order than the replicas."""
    random = Random(1)

    def moving() -> PartitionState:
        replicas = tuple(random.sample(BROKERS, REPLICAS))
        isr = tuple(random.sample(replicas, REPLICAS))
        unknown = (("adding", replicas[:3]), ("removing", replicas[3:]))
        return PartitionState(replicas, isr, replicas[0], random.randrange(1000), unknown)

    return TopicImage("orders", TOPIC_ID, tuple([moving() for _ in range(PARTITIONS)]), MappingProxyType({}))


def test_ten_thousand_moving_partitions_are_written_changed_and_read(stores: Stores) -> None:
    async def test() -> None:
        failures: list[BaseException] = []
        tasks = Tasks(failures.append)
        store = await stores.client()
        topic, key = moving_topic(), topic_key(TOPIC_ID)
        value = topic.to_bytes(TOPIC_FORMAT_BY_NAME)
        assert len(value) < MAX_TRANSACTION_BYTES
        assert await store.txn([], [Write(key, value)]) is not None
        broker = ClusterMetadata(store, Random(1), 1, tasks)
        await broker.load()

        def shrunk(stored: TopicImage) -> TopicImage:
            return replace(stored, partitions=tuple([replace(state, isr=state.isr[:5]) for state in stored.partitions]))

        try:
            async with Follower(store, TOPICS, stores.patience_seconds) as follower:
                await follower.until(lambda seen: seen == {key: value})
                await broker.alter_topics({TOPIC_ID: shrunk})
                entry = await store.get(key)
                assert entry is not None
                assert TopicImage.from_bytes(entry.value) == shrunk(topic) == broker.image.topics["orders"]
                await follower.until(lambda seen: seen == {key: entry.value})
        finally:
            await tasks.cancel()
        assert not failures

    stores.run(test())
