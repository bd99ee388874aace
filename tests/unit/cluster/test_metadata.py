"""Metadata changes: each is stored first, then seen by all, and never half made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from tailrace.cluster.image import (
    ALL_BROKERS,
    BrokerEndpoint,
    BrokerImage,
    ClusterImage,
    TopicImage,
    configs_from_bytes,
    configs_to_bytes,
)
from tailrace.cluster.metadata import PRODUCER_ID_BLOCK, ClusterMetadata
from tailrace.cluster.store import Check, Entry, Unavailable, Unreadable, Write
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.runtime.tasks import Tasks
from tailrace.stores.memory import MemoryStore

BROKER = BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "localhost", 9092),))


class SlowStore(MemoryStore):
    """A memory store whose answers take a turn of the loop, or do not come when it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        #: Whether changes are made but never answered.
        self.loses_answers = False
        #: Whether changes are neither made nor answered.
        self.loses_requests = False

    async def get(self, key: str) -> Entry | None:
        await self._answer()
        return await super().get(key)

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        await self._answer()
        if self.loses_requests:
            raise Unavailable("was that a no?")
        versions = await super().txn(checks, writes)
        await self._answer()
        if versions is not None and self.loses_answers:
            raise Unavailable("was that a yes?")
        return versions

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
def test_a_cancelled_caller_does_not_leave_a_change_half_made(turns: int) -> None:
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


def with_config(name: str, value: str) -> Callable[[TopicImage], TopicImage]:
    return lambda topic: replace(topic, configs=MappingProxyType({**topic.configs, name: value}))


def test_a_topic_is_what_it_was_changed_to_and_after_a_restart_too() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "orders", 2))
        topic = metadata.image.topics["orders"]
        await metadata.alter_topic(topic, with_config("segment.ms", "7"))
        await metadata.alter_topic(topic, lambda stored: metadata.plan_partitions(stored, 4, None))
        for image in (metadata.image, (await loaded(store)).image):
            changed = image.topics["orders"]
            assert changed is image.topics_by_id[topic.topic_id]
            assert changed.configs == {"retention.ms": "5", "segment.ms": "7"}
            assert changed.partitions[:2] == topic.partitions
            assert len(changed.partitions) == 4

    run(test)


def test_of_many_changes_to_one_topic_none_is_lost_also_where_another_broker_makes_some() -> None:
    async def test(store: SlowStore) -> None:
        one = await loaded(store)
        await one.create_topic(planned(one, "orders"))
        two = await loaded(store)
        topic = one.image.topics["orders"]
        changes = [
            each.alter_topic(topic, with_config(f"key.{number}", "v"))
            for number, each in enumerate((one, two, one, two, one))
        ]
        await asyncio.gather(*changes)
        assert sorted((await loaded(store)).image.topics["orders"].configs) == [
            *(f"key.{number}" for number in range(5)),
            "retention.ms",
        ]

    run(test)


def test_a_change_that_is_refused_leaves_the_topic_alone() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "orders", 2))
        before = metadata.image
        topic = before.topics["orders"]
        with pytest.raises(KafkaError) as caught:
            await metadata.alter_topic(topic, lambda stored: metadata.plan_partitions(stored, 1, None))
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS
        await metadata.alter_topic(topic, lambda stored: stored)
        assert metadata.image is before
        await metadata.delete_topic(topic)
        with pytest.raises(KafkaError) as caught:
            await metadata.alter_topic(topic, with_config("a", "b"))
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(test)


def test_a_topic_that_is_changed_and_deleted_at_once_is_deleted() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "orders"))
        topic = metadata.image.topics["orders"]
        changes = [metadata.alter_topic(topic, with_config(f"key.{number}", "v")) for number in range(4)]
        await asyncio.gather(*changes, metadata.delete_topic(topic), return_exceptions=True)
        assert metadata.image.topics == (await loaded(store)).image.topics == {}

    run(test)


def test_the_configuration_of_brokers_is_kept_by_broker_and_for_all() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        assert metadata.image.configs_of("1") == metadata.image.configs_of(ALL_BROKERS) == {}
        await metadata.alter_broker_configs("1", lambda stored: {**stored, "a": "1"})
        await metadata.alter_broker_configs(ALL_BROKERS, lambda stored: {**stored, "a": "2", "b": "3"})
        await metadata.alter_broker_configs("1", lambda stored: {**stored, "c": "4"})
        for image in (metadata.image, (await loaded(store)).image):
            assert image.configs_of("1") == {"a": "1", "c": "4"}
            assert image.configs_of(ALL_BROKERS) == {"a": "2", "b": "3"}
        await metadata.alter_broker_configs(ALL_BROKERS, lambda stored: {})
        assert (await loaded(store)).image.configs_of(ALL_BROKERS) == {}

    run(test)


@pytest.mark.parametrize("turns", range(12))
def test_a_crash_around_a_change_of_configuration_leaves_the_old_or_the_new(turns: int) -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "orders"))
        topic = metadata.image.topics["orders"]
        changes = [
            metadata.alter_topic(topic, with_config("retention.ms", "6")),
            metadata.alter_broker_configs("1", lambda stored: {"a": "1", "b": "2"}),
        ]
        tasks = [asyncio.get_running_loop().create_task(change) for change in changes]
        for _ in range(turns):
            await asyncio.sleep(0)
        # The process ends here: whatever a new one finds in the store is whole, and all of what was acknowledged.
        acknowledged = [task.done() for task in tasks]
        found = await loaded(store)
        assert found.image.topics["orders"].configs["retention.ms"] in ("6", *([] if acknowledged[0] else ["5"]))
        assert found.image.configs_of("1") in ({"a": "1", "b": "2"}, *([] if acknowledged[1] else [{}]))
        await asyncio.gather(*tasks)

    run(test)


def test_a_change_that_was_made_and_not_answered_is_found_out_about() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "orders"))
        await metadata.create_topic(planned(metadata, "bills"))
        store.loses_answers = True
        topic = metadata.image.topics["orders"]
        await metadata.alter_topic(topic, lambda stored: metadata.plan_partitions(stored, 2, None))
        await metadata.alter_broker_configs("1", lambda stored: {"a": "1"})
        await metadata.create_topic(planned(metadata, "payments"))
        await metadata.delete_topic(metadata.image.topics["bills"])
        again = (await loaded(store)).image
        assert metadata.image.topics == again.topics
        assert metadata.image.broker_configs == again.broker_configs == {"1": {"a": "1"}}
        assert sorted(again.topics) == ["orders", "payments"]
        assert len(again.topics["orders"].partitions) == 2

    run(test)


def test_a_change_that_was_neither_made_nor_answered_is_a_timeout_to_clients() -> None:
    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await metadata.create_topic(planned(metadata, "orders"))
        topic, before = metadata.image.topics["orders"], metadata.image
        store.loses_requests = True
        for change in (
            metadata.alter_topic(topic, with_config("retention.ms", "6")),
            metadata.alter_broker_configs("1", lambda stored: {"a": "1"}),
            metadata.create_topic(planned(metadata, "payments")),
            metadata.delete_topic(topic),
            metadata.claim_producer_ids(),
        ):
            with pytest.raises(KafkaError) as caught:
                await change
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert metadata.image is before

    run(test)


def test_producer_ids_whose_claim_was_not_answered_are_given_to_nobody() -> None:
    async def test(store: SlowStore) -> None:
        one, two = await loaded(store), await loaded(store)
        store.loses_answers = True
        with pytest.raises(KafkaError):
            await one.claim_producer_ids()
        store.loses_answers = False
        assert await two.claim_producer_ids() == range(PRODUCER_ID_BLOCK, 2 * PRODUCER_ID_BLOCK)

    run(test)


def test_broker_configuration_is_stored_with_a_version_and_a_newer_one_is_refused() -> None:
    assert configs_from_bytes(configs_to_bytes({"a": "1"})) == {"a": "1"}
    with pytest.raises(Unreadable, match="format 2"):
        configs_from_bytes(b'{"version":2,"configs":{}}')


def test_a_change_of_a_broker_configuration_keeps_fields_of_a_newer_release() -> None:
    stored = b'{"version":1,"configs":{"a":"1"},"set_by":"an operator"}'
    assert json.loads(configs_to_bytes({"a": "2"}, stored)) == {
        "version": 1,
        "configs": {"a": "2"},
        "set_by": "an operator",
    }

    async def test(store: SlowStore) -> None:
        metadata = await loaded(store)
        await store.txn([], [Write("/configs/brokers/default", stored)])
        await metadata.alter_broker_configs(ALL_BROKERS, lambda configs: {**configs, "b": "2"})
        entry = await store.get("/configs/brokers/default")
        assert entry is not None
        assert json.loads(entry.value) == {"version": 1, "configs": {"a": "1", "b": "2"}, "set_by": "an operator"}

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


def test_a_broker_is_registered_with_a_version_and_a_newer_one_is_refused() -> None:
    broker = BrokerImage(
        3, (BrokerEndpoint("PLAINTEXT", "one", 9092),), "a", 7, "machine", 4711, ("d1", "d2"), "0.1", 1_700_000_000_000
    )
    assert BrokerImage.from_bytes(broker.to_bytes()) == broker
    newer = json.loads(broker.to_bytes()) | {"version": 2}
    with pytest.raises(Unreadable, match="registration of a broker is stored in format 2"):
        BrokerImage.from_bytes(json.dumps(newer).encode())


def test_a_broker_is_known_by_the_listener_that_was_asked() -> None:
    assert BROKER.endpoint("PLAINTEXT") == BrokerEndpoint("PLAINTEXT", "localhost", 9092)
    assert BROKER.endpoint("OTHER") is None
