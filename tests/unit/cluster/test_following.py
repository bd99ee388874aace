"""The image follows the store: changes by others appear in order, and late news undoes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from tailrace.cluster.image import ClusterImage, TopicImage, configs_to_bytes
from tailrace.cluster.keys import CONTROLLER, ElectedController, broker_key, topic_key
from tailrace.cluster.store import Changes, Check, Entry, Write
from tailrace.errors import ErrorCode, KafkaError
from tailrace.stores.memory import MemorySpace, MemoryStore
from tests.unit.cluster.worlds import Member, World, broker, run, state


class ToldStore(MemoryStore):
    """A store whose watches tell what a test has them tell."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self._told: dict[str, asyncio.Queue[Changes]] = {}

    def tell(self, directory: str, *entries: Entry, removed: tuple[str, ...] = (), is_complete: bool = False) -> None:
        self._told_of(directory).put_nowait(Changes(entries, removed, is_complete))

    def _told_of(self, directory: str) -> asyncio.Queue[Changes]:
        return self._told.setdefault(directory, asyncio.Queue())

    async def watch(self, directory: str) -> AsyncIterator[Changes]:  # type: ignore[override]
        while True:
            yield await self._told_of(directory).get()


async def told(world: World) -> tuple[Member, ToldStore]:
    store = ToldStore(world.space)
    member = Member(store, world.clock, 1)
    await member.metadata.load("cluster")
    await member.metadata.start()
    await member.metadata.register_broker(broker(1))
    return member, store


async def entry_of(world: World, topic: TopicImage) -> Entry:
    entry = await world.store.get(topic_key(topic.lineage))
    assert entry is not None
    return entry


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def with_config(topic: TopicImage, value: str) -> TopicImage:
    return replace(topic, configs=MappingProxyType({"retention.ms": value}))


def test_what_one_broker_does_the_others_see() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        planned = one.metadata.plan_topic("orders", 2, 2, {}, {})
        await one.metadata.create_topic(planned)
        await world.until(lambda: two.metadata.image.topics.get("orders") == planned)
        await two.metadata.alter_topic(planned, lambda topic: with_config(topic, "5"))
        await world.until(lambda: one.metadata.image.topics["orders"].configs == {"retention.ms": "5"})
        await two.metadata.alter_broker_configs("1", lambda stored: {"max.connections": "7"})
        await world.until(lambda: one.metadata.image.configs_of("1") == {"max.connections": "7"})
        await one.metadata.delete_topic(planned)
        await world.until(lambda: not two.metadata.image.topics)
        assert list(one.metadata.image.brokers) == list(two.metadata.image.brokers) == [1, 2]
        assert one.metadata.image.controller_id == two.metadata.image.controller_id == 1

    run(test)


def test_who_comes_and_goes_is_seen_by_all() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        assert list(two.metadata.image.brokers) == [1, 2]
        assert two.metadata.image.brokers[1].host == "machine1"
        await world.until(lambda: list(one.metadata.image.brokers) == [1, 2])
        one.kill()
        await world.until(lambda: list(two.metadata.image.brokers) == [2])
        await world.until(lambda: two.metadata.image.controller_id == 2)

    run(test)


def test_a_broker_starts_with_all_there_is() -> None:
    async def test(world: World) -> None:
        await world.started(2)
        topic = await world.put_topic("orders", state("12", "2", 2))
        await world.store.txn([], [Write("/configs/brokers/default", configs_to_bytes({"a": "b"}))])
        one = world.member(1)
        await one.metadata.load()
        assert one.metadata.image.topics == {"orders": topic}
        assert one.metadata.image.configs_of("") == {"a": "b"}
        assert (list(one.metadata.image.brokers), one.metadata.image.controller_id) == ([2], 2)

    run(test)


def test_news_that_are_older_than_what_is_known_change_nothing() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("1", "1", 1))
        member, store = await told(world)
        old = await entry_of(world, topic)
        await member.metadata.alter_topic(topic, lambda each: with_config(each, "9"))
        image = member.metadata.image
        store.tell("/topics", old)
        store.tell("/topics", old, is_complete=True)
        await turns()
        assert member.metadata.image is image

    run(test)


def test_a_deleted_topic_never_comes_back() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("1", "1", 1))
        member, store = await told(world)
        old = await entry_of(world, topic)
        await member.metadata.delete_topic(topic)
        store.tell("/topics", old)
        store.tell("/topics", old._replace(version=old.version + 50))
        await turns()
        assert member.metadata.image.topics == {}
        again = member.metadata.plan_topic("orders", 1, 1, {}, {})
        await member.metadata.create_topic(again)
        store.tell("/topics", removed=(topic_key(topic.lineage),))
        await turns()
        assert member.metadata.image.topics == {"orders": again}

    run(test)


def test_a_topic_that_is_newer_than_all_there_was_stays_and_one_that_is_gone_goes() -> None:
    async def test(world: World) -> None:
        gone = await world.put_topic("gone", state("1", "1", 1))
        member, store = await told(world)
        fresh = member.metadata.plan_topic("fresh", 1, 1, {}, {})
        await member.metadata.create_topic(fresh)
        await world.store.txn([], [Write(topic_key(gone.lineage), None)])
        store.tell("/topics", is_complete=True)
        await turns()
        assert member.metadata.image.topics == {"fresh": fresh}

    run(test)


def test_a_topic_is_replaced_by_another_of_its_name_in_one_step() -> None:
    async def test(world: World) -> None:
        first = await world.put_topic("orders", state("1", "1", 1))
        member, store = await told(world)
        await world.store.txn([], [Write(topic_key(first.lineage), None), Write("/topic-names/orders", None)])
        new_id = member.metadata.new_id()
        second = replace(first, topic_id=new_id, lineage=new_id)
        store.tell("/topics", Entry(topic_key(second.lineage), second.to_bytes(), 77))
        store.tell("/topics", removed=(topic_key(first.lineage),))
        await turns()
        assert member.metadata.image.topics_by_id == {second.topic_id: second}
        assert member.metadata.image.topics == {"orders": second}

    run(test)


def test_a_broker_is_to_itself_what_it_registered_whatever_is_told_of_an_earlier_process() -> None:
    async def test(world: World) -> None:
        member, store = await told(world)
        earlier = replace(broker(1), pid=1)
        store.tell("/brokers", Entry(broker_key(1), earlier.to_bytes(), 5), is_complete=True)
        store.tell("/brokers", Entry(broker_key(2), broker(2).to_bytes(), 6))
        await turns()
        assert member.metadata.image.brokers == {1: broker(1), 2: broker(2)}
        store.tell("/brokers", removed=(broker_key(1), broker_key(2)))
        await turns()
        assert member.metadata.image.brokers == {1: broker(1)}

    run(test)


def test_the_controller_is_who_was_elected_last() -> None:
    async def test(world: World) -> None:
        member, store = await told(world)
        for broker_id, version in ((3, 9), (2, 1)):  # versions begin anew with each session
            store.tell("/controller", Entry(CONTROLLER, ElectedController(broker_id, 4).to_bytes(), version))
            await turns()
            assert member.metadata.image.controller_id == broker_id
        store.tell("/controller", removed=(CONTROLLER,))
        await turns()
        assert member.metadata.image.controller_id == -1

    run(test)


def test_a_change_waits_until_those_who_listen_are_done_with_the_one_before() -> None:
    async def test(world: World) -> None:
        member, _ = await told(world)
        gate = asyncio.Event()
        steps: list[tuple[list[str], list[str]]] = []

        async def listen(before: ClusterImage) -> None:
            steps.append((sorted(before.topics), sorted(member.metadata.image.topics)))
            await gate.wait()

        member.metadata.on_change = listen
        creations = []
        for name in ("a", "b", "c"):
            planned = member.metadata.plan_topic(name, 1, 1, {}, {})
            creations.append(asyncio.ensure_future(member.metadata.create_topic(planned)))
            await turns()
        # The second and third wait, and are then shown in one step; nobody is told "done" before.
        assert steps == [([], ["a"])]
        assert not any(creation.done() for creation in creations)
        gate.set()
        await asyncio.gather(*creations)
        assert steps == [([], ["a"]), (["a"], ["a", "b", "c"])]

    run(test)


def test_a_listener_that_fails_leaves_nobody_waiting() -> None:
    async def test(world: World) -> None:
        member, _ = await told(world)

        async def listen(before: ClusterImage) -> None:
            raise OSError("a listener's own trouble")

        member.metadata.on_change = listen
        planned = member.metadata.plan_topic("orders", 1, 1, {}, {})
        with pytest.raises(asyncio.CancelledError):
            await member.metadata.create_topic(planned)
        assert [str(failure) for failure in member.failures] == ["a listener's own trouble"]

    run(test)


def test_a_change_of_a_topic_that_another_broker_deleted_fails_as_unknown() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("1", "1", 1))
        member, _ = await told(world)
        await world.store.txn([Check("/nothing", 0)], [Write(topic_key(topic.lineage), None)])
        with pytest.raises(KafkaError) as caught:
            await member.metadata.alter_topic(topic, lambda each: with_config(each, "1"))
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await turns()
        assert member.metadata.image.topics == {}

    run(test)


@pytest.mark.parametrize("is_told", [False, True])
def test_what_others_know_and_no_watch_tells_is_asked_for_after_a_moment(is_told: bool) -> None:
    async def test(world: World) -> None:
        member, _ = await told(world)
        await world.put_topic("orders", state("1", "1", 1))
        for _ in range(3):
            member.metadata.look_soon(lambda: is_told)
        await asyncio.sleep(0.1)
        assert "orders" not in member.metadata.image.topics
        await asyncio.sleep(0.2)
        assert ("orders" in member.metadata.image.topics) is not is_told
        await world.put_topic("audit", state("1", "1", 1))
        member.metadata.look_soon(lambda: False)
        await asyncio.sleep(0.3)
        assert "audit" in member.metadata.image.topics
        assert member.failures == []

    run(test)


def test_a_value_that_cannot_be_read_costs_nobody_more_than_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        topics = [one.metadata.plan_topic(name, 1, 1, {}, {}) for name in ("orders", "others")]
        for topic in topics:
            await one.metadata.create_topic(topic)
        broken = [
            Write(topic_key(topics[0].lineage), value)
            for value in (b"", b"\xff", b"[]", b'{"version":99}', b'{"version":2,"partitions":[7]}', b'{"version":"x"}')
        ]
        strays = ["/topics/no-id", "/archives/no-id", "/brokers/no-number", "/configs/brokers/1", CONTROLLER]
        for write in [*broken, *(Write(key, b"{") for key in strays), *(Write(key, None) for key in strays)]:
            assert await world.store.txn([], [write]) is not None
            await turns()
        # What is read of it later is refused, and no reason to end either.
        with pytest.raises(KafkaError) as refused:
            await one.metadata.alter_topic(topics[0], lambda topic: with_config(topic, "5"))
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        await one.metadata.refresh()
        assert one.metadata.image.topics["orders"] == topics[0], "as it was known before"
        await one.metadata.alter_topic(topics[1], lambda topic: with_config(topic, "7"))
        assert one.metadata.image.topics["others"].configs == {"retention.ms": "7"}
        assert "Ignored /topics/" in caplog.text

    run(test)
