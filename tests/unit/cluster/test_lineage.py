"""The image finds a topic by its id on the wire and by its lineage, in whatever order changes are learned."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

from tailrace.cluster.image import ClusterImage, PartitionState, TopicImage
from tailrace.cluster.keys import topic_key
from tailrace.cluster.known import Known
from tailrace.model import Lineage, TopicId
from tests.unit.cluster.worlds import World, run, state

FIRST, SECOND, THIRD = (UUID(int=number) for number in (1, 2, 3))
ORDERS = TopicImage("orders", TopicId(FIRST), (PartitionState((1,), (1,), 1, 0),), MappingProxyType({}))
RENAMED = replace(ORDERS, topic_id=TopicId(SECOND))
EMPTY = ClusterImage("cluster", 1)


def ids_of(image: ClusterImage) -> tuple[set[UUID], set[UUID]]:
    """The ids and the lineages that it finds topics by."""
    for topic in image.topics.values():
        assert image.topics_by_id[topic.topic_id] is image.topics_by_lineage[topic.lineage] is topic
    return set(image.topics_by_id), set(image.topics_by_lineage)


def test_a_topic_is_found_by_its_newest_id_and_by_its_lineage() -> None:
    image = EMPTY.with_topic_changes([ORDERS], [])
    assert ids_of(image) == ({FIRST}, {FIRST})
    image = image.with_topic_changes([RENAMED], [])
    assert ids_of(image) == ({SECOND}, {FIRST})
    image = image.with_topic_changes([replace(RENAMED, topic_id=TopicId(THIRD))], [])
    assert ids_of(image) == ({THIRD}, {FIRST})
    image = image.with_topic_changes([], [ORDERS.lineage])
    assert ids_of(image) == (set(), set())
    assert not image.topics


def test_a_topic_that_takes_the_name_of_a_renamed_one_takes_its_place() -> None:
    image = EMPTY.with_topic_changes([ORDERS], []).with_topic_changes([RENAMED], [])
    other = replace(ORDERS, topic_id=TopicId(THIRD), lineage=Lineage(THIRD))
    image = image.with_topic_changes([other], [])
    assert ids_of(image) == ({THIRD}, {THIRD})
    # That the one before was deleted is learned late.
    image = image.with_topic_changes([], [ORDERS.lineage])
    assert image.topics == {"orders": other}


def test_ids_and_lineages_lead_to_each_other() -> None:
    image = EMPTY.with_topic_changes([RENAMED], [])
    assert image.lineage_of(TopicId(SECOND)) == FIRST
    assert image.topic_id_of(Lineage(FIRST)) == SECOND
    # A member may still use the first id, and a topic may be gone.
    assert image.lineage_of(TopicId(FIRST)) == FIRST
    assert (image.lineage_of(TopicId(THIRD)), image.topic_id_of(Lineage(THIRD))) == (THIRD, THIRD)


def test_an_id_that_is_heard_of_late_does_not_come_back() -> None:
    known = Known(1)
    known.learn_topic(ORDERS, 5)
    known.learn_topic(RENAMED, 7)
    known.learn_topic(ORDERS, 6)
    assert known.topics == {FIRST: RENAMED}
    known.forget_topic(ORDERS.lineage)
    known.learn_topic(RENAMED, 8)
    assert known.topics == {}


def test_a_new_id_reaches_every_broker_under_the_key_that_was_there() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("12", "12", 1))
        one, two = await world.started(1, 2)
        topic_id = await one.metadata.change_topic_id(topic)
        await world.until(lambda: two.metadata.image.topics["orders"].topic_id == topic_id)
        assert one.metadata.image.topics == two.metadata.image.topics
        assert [entry.key for entry in await world.store.list("/topics")] == [topic_key(topic.lineage)]
        # Changes of a broker that only knows the former one are made to the same topic.
        await two.metadata.alter_topic(topic, lambda stored: replace(stored, configs={"a": "b"}))
        changed = await world.stored(topic)
        assert (changed.topic_id, changed.lineage, changed.configs) == (topic_id, topic.lineage, {"a": "b"})

    run(test)


def test_a_topic_with_another_id_is_deleted_and_its_name_is_free() -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        topic = one.metadata.plan_topic("orders", 1, 1, {}, {})
        await one.metadata.create_topic(topic)
        await one.metadata.change_topic_id(topic)
        await one.metadata.delete_topic(one.metadata.image.topics["orders"])
        assert await world.store.list("/topics") == await world.store.list("/topic-names") == []
        again = one.metadata.plan_topic("orders", 1, 1, {}, {})
        await one.metadata.create_topic(again)
        assert one.metadata.image.topics["orders"].lineage == again.topic_id != topic.lineage

    run(test)
