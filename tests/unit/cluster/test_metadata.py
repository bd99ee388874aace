"""The image follows the store: every change is stored first, seen by all afterwards, and never half made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from tailrace.cluster.image import BrokerEndpoint, BrokerImage, ClusterImage, PartitionState, TopicImage
from tailrace.cluster.metadata import PRODUCER_ID_BLOCK, ClusterMetadata
from tailrace.cluster.store import Check, Entry, Unavailable, Write
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.runtime.tasks import Tasks
from tailrace.stores.memory import MemoryStore

BROKER = BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "localhost", 9092),))


class SlowStore(MemoryStore):
    """A memory store whose answers take a turn of the loop, or do not come when it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False

    async def get(self, key: str) -> Entry | None:
        await self._answer()
        return await super().get(key)

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        await self._answer()
        done = await super().txn(checks, writes)
        await self._answer()
        return done

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.is_down:
            raise Unavailable("nobody there")


def _unexpected(error: BaseException) -> None:
    raise error


async def loaded(store: MemoryStore, cluster_id: str | None = None) -> ClusterMetadata:
    metadata = ClusterMetadata(store, Random(1), 1, Tasks(_unexpected))
    await metadata.load(cluster_id)
    await metadata.register_broker(BROKER)
    return metadata


def planned(metadata: ClusterMetadata, name: str, partitions: int = 1) -> TopicImage:
    return metadata.plan_topic(name, partitions, 1, {}, {"retention.ms": "5"})


def run(test: Callable[[SlowStore], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(SlowStore()))


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_a_new_cluster_gets_an_id_that_it_keeps() -> None:
    async def test(store: SlowStore) -> None:
        first = (await loaded(store)).image.cluster_id
        assert len(first) == 22
        assert (await loaded(store, first)).image.cluster_id == first
        with pytest.raises(StorageError, match="belongs to cluster"):
            await loaded(store, "another")
        assert (await loaded(SlowStore(), "given")).image.cluster_id == "given"

    run(test)


def test_a_created_topic_is_in_the_image_and_after_a_restart_too() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        topic = planned(metadata, "orders", 3)
        assert metadata.image.topics == {}
        await metadata.create_topic(topic)
        for image in (metadata.image, (await loaded(store)).image):
            assert image.topics["orders"] == image.topics_by_id[topic.topic_id] == topic

    run(test)


def test_a_deleted_topic_is_gone_for_good_and_its_name_is_free() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        first = planned(metadata, "orders")
        await metadata.create_topic(first)
        await metadata.delete_topic(first)
        assert (metadata.image.topics, metadata.image.topics_by_id) == ({}, {})
        second = planned(metadata, "orders")
        assert second.topic_id != first.topic_id
        await metadata.create_topic(second)
        with pytest.raises(KafkaError) as caught:
            await metadata.delete_topic(first)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await loaded(store)).image.topics["orders"].topic_id == second.topic_id

    run(test)


def test_of_many_who_create_or_delete_the_same_topic_at_once_one_succeeds() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        plans = [planned(metadata, "orders") for _ in range(5)]
        results = await asyncio.gather(*map(metadata.create_topic, plans), return_exceptions=True)
        assert [type(result) for result in results].count(KafkaError) == 4
        topic = metadata.image.topics["orders"]
        results = await asyncio.gather(*(metadata.delete_topic(topic) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results].count(KafkaError) == 4
        assert metadata.image.topics == (await loaded(store)).image.topics == {}

    run(test)


@pytest.mark.parametrize("turns", range(8))
def test_whoever_goes_away_during_a_change_does_not_leave_it_half_made(turns: int) -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        for change in (metadata.create_topic, metadata.delete_topic):
            topic = metadata.image.topics.get("orders") or planned(metadata, "orders")
            task = asyncio.get_running_loop().create_task(change(topic))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert metadata.image.topics == (await loaded(store)).image.topics

    run(test)


def test_a_store_that_does_not_answer_is_a_timeout_to_clients() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        topic = planned(metadata, "orders")
        store.is_down = True
        for change in (metadata.create_topic(topic), metadata.delete_topic(topic), metadata.claim_producer_ids()):
            with pytest.raises(KafkaError) as caught:
                await change
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(test)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "\u00e9", "x" * 250])
def test_illegal_names_are_refused(name: str) -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        assert refusal(lambda: planned(metadata, name)) is ErrorCode.INVALID_TOPIC_EXCEPTION

    run(test)


def test_names_that_exist_or_differ_only_in_dots_and_underscores_are_refused() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "a.b_c"))
        assert refusal(lambda: planned(metadata, "a.b_c")) is ErrorCode.TOPIC_ALREADY_EXISTS
        assert refusal(lambda: planned(metadata, "a_b.c")) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert planned(metadata, "a-b_c").name == "a-b_c"

    run(test)


def test_new_epochs_begin_everywhere_this_broker_leads_and_are_stored() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        for number in range(3):
            await metadata.create_topic(planned(metadata, f"t{number}", 2))
        await metadata.bump_leader_epochs()
        again = await loaded(store)
        for image in (metadata.image, again.image):
            assert [state.leader_epoch for topic in image.topics.values() for state in topic.partitions] == [1] * 6
        await again.bump_leader_epochs()
        assert again.image.topics["t0"].partitions[0].leader_epoch == 2

    run(test)


def test_those_who_listen_are_told_with_the_image_before() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        seen: list[tuple[list[str], list[str]]] = []

        async def listen(before: ClusterImage) -> None:
            seen.append((list(before.topics), list(metadata.image.topics)))

        metadata.on_change = listen
        topic = planned(metadata, "orders")
        await metadata.create_topic(topic)
        await metadata.delete_topic(topic)
        assert seen == [([], ["orders"]), (["orders"], [])]

    run(test)


def test_producer_ids_are_never_given_twice() -> None:
    async def test(store: SlowStore) -> None:
        one, two = await loaded(store), await loaded(store)
        blocks = await asyncio.gather(*(each.claim_producer_ids() for each in (one, two, one, two)))
        ids = [producer_id for block in blocks for producer_id in block]
        assert sorted(ids) == list(range(4 * PRODUCER_ID_BLOCK))

    run(test)


def test_a_topic_is_stored_with_a_version_and_a_newer_one_is_refused() -> None:
    topic = TopicImage(
        "orders", UUID(int=5), (PartitionState((1, 2), (1,), 1, 7),), MappingProxyType({"cleanup.policy": "delete"})
    )
    assert TopicImage.from_bytes(topic.to_bytes()) == topic
    newer = json.loads(topic.to_bytes()) | {"version": 2}
    with pytest.raises(StorageError, match="format 2"):
        TopicImage.from_bytes(json.dumps(newer).encode())


def test_a_broker_is_known_by_the_listener_that_was_asked() -> None:
    assert BROKER.endpoint("PLAINTEXT") == BrokerEndpoint("PLAINTEXT", "localhost", 9092)
    assert BROKER.endpoint("OTHER") is None
