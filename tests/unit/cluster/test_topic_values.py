"""Topics as the store holds them: all formats are read, and a change loses nothing that a newer release wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.image import (
    TOPIC_FORMAT_BY_NAME,
    TOPIC_FORMAT_BY_POSITION,
    TOPIC_FORMAT_WITH_LINEAGE,
    PartitionState,
    TopicImage,
)
from tailrace.cluster.store import Unreadable
from tests.unit.cluster.worlds import World, run, state

TOPIC_ID = UUID(int=5)
PARTITIONS = (PartitionState((1, 2), (1,), 1, 7), PartitionState((2, 1), (2, 1), -1, 0))
TOPIC = TopicImage("orders", TOPIC_ID, PARTITIONS, MappingProxyType({"cleanup.policy": "delete"}))
#: What every format has in common.
HEAD: dict[str, Any] = {"name": "orders", "topic_id": str(TOPIC_ID), "configs": {"cleanup.policy": "delete"}}
FORMATS = [TOPIC_FORMAT_BY_POSITION, TOPIC_FORMAT_BY_NAME]

#: As a newer release might write it, in the same format: two fields of partitions and one of the topic are its own.
NEWER = {
    **HEAD,
    "version": 3,
    "owner": {"team": "sales"},
    "brokers": [1, 2, 3],
    "broker_lists": ["isr", "adding", "replicas"],
    "fields": ["leader", "leader_epoch", "replicas", "isr", "weight", "adding"],
    "partitions": [[1, 7, "ab", "a", [5, 5], "c"], [2, 0, "ba", "ba", None, ""], [2, 0, "ba", "ba"]],
}


def as_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def test_the_first_format_is_read() -> None:
    partitions = [
        {"replicas": [1, 2], "isr": [1], "leader": 1, "leader_epoch": 7},
        {"replicas": [2, 1], "isr": [2, 1], "leader": -1, "leader_epoch": 0},
    ]
    assert TopicImage.from_bytes(as_bytes({**HEAD, "version": 1, "partitions": partitions})) == TOPIC


def test_the_second_format_is_read_and_written() -> None:
    stored = {**HEAD, "version": 2, "partitions": [[[1, 2], [1], 1, 7], [[2, 1], [2, 1], -1, 0]]}
    assert TopicImage.from_bytes(as_bytes(stored)) == TOPIC
    assert json.loads(TOPIC.to_bytes(TOPIC_FORMAT_BY_POSITION)) == stored


def test_the_third_format_is_read_and_written() -> None:
    stored = {
        **HEAD,
        "version": 3,
        "brokers": [1, 2],
        "broker_lists": ["replicas", "isr"],
        "fields": ["replicas", "isr", "leader", "leader_epoch"],
        "partitions": [["ab", "a", 1, 7], ["ba", "ba", -1, 0]],
    }
    assert TopicImage.from_bytes(as_bytes(stored)) == TOPIC
    assert json.loads(TOPIC.to_bytes(TOPIC_FORMAT_BY_NAME)) == stored


def test_a_newer_format_is_refused() -> None:
    newer = json.loads(TOPIC.to_bytes()) | {"version": 5}
    with pytest.raises(Unreadable, match="a topic is stored in format 5, but this release supports only up to 4"):
        TopicImage.from_bytes(as_bytes(newer))


@pytest.mark.parametrize("topic_format", [*FORMATS, TOPIC_FORMAT_WITH_LINEAGE])
def test_a_topic_with_its_first_id_is_stored_without_a_lineage(topic_format: int) -> None:
    value = json.loads(TOPIC.to_bytes(topic_format))
    assert value["version"] == min(topic_format, TOPIC_FORMAT_BY_NAME)
    assert "lineage" not in value
    assert TopicImage.from_bytes(as_bytes(value)).lineage == TOPIC_ID == TOPIC.lineage


@pytest.mark.parametrize("topic_format", [*FORMATS, TOPIC_FORMAT_WITH_LINEAGE])
def test_a_topic_with_another_id_is_stored_in_a_format_that_older_releases_refuse(topic_format: int) -> None:
    renamed = replace(TOPIC, topic_id=UUID(int=6))
    assert renamed.lineage == TOPIC_ID
    stored = renamed.to_bytes(topic_format)
    value = json.loads(stored)
    assert (value["version"], value["topic_id"], value["lineage"]) == (4, str(UUID(int=6)), str(TOPIC_ID))
    assert TopicImage.from_bytes(stored) == renamed
    # Fields of a newer release stay as well.
    newer = TopicImage.from_bytes(as_bytes({**value, "owner": "sales"}))
    assert json.loads(newer.to_bytes(topic_format))["owner"] == "sales"
    assert newer.without_unknown() == renamed


@pytest.mark.parametrize("topic_format", FORMATS)
def test_a_change_keeps_fields_of_a_newer_release(topic_format: int) -> None:
    read = TopicImage.from_bytes(as_bytes(NEWER))
    assert [replace(each, unknown=()) for each in read.partitions] == [
        PartitionState((1, 2), (1,), 1, 7),
        PartitionState((2, 1), (2, 1), 2, 0),
        PartitionState((2, 1), (2, 1), 2, 0),
    ]
    first, second, third = read.partitions
    # A broker that knows neither field changes an ISR, and adds a partition.
    changed = replace(
        read, partitions=(replace(first, isr=(1, 2)), second, third, PartitionState((4, 1), (4, 1), 4, 0))
    )
    stored = changed.to_bytes(topic_format)
    assert TopicImage.from_bytes(stored) == changed
    value = json.loads(stored)
    assert value["owner"] == {"team": "sales"}
    # The newer one finds its fields by their names; what only it knows of brokers still names the same brokers.
    adding, weight = value["fields"].index("adding"), value["fields"].index("weight")
    letters = dict(zip("abcd", value["brokers"], strict=True))
    rows = value["partitions"]
    assert "adding" in value["broker_lists"]
    assert "weight" not in value["broker_lists"]
    assert [letters[letter] for letter in rows[0][adding]] == [3]
    assert (rows[0][weight], rows[1][weight], rows[1][adding]) == ([5, 5], None, "")
    assert [len(row) for row in rows] == [6, 6, 4, 4]


def test_a_failover_keeps_fields_of_a_newer_release() -> None:
    async def test(world: World) -> None:
        unknown = (("adding", (3,)), ("weight", [5, 5]))
        topic = await world.put_topic("orders", replace(state("12", "12", 1), unknown=unknown))
        one, two = await world.started(1, 2)
        one.kill()
        await world.until(lambda: two.metadata.image.topics["orders"].partitions[0].leader == 2)
        (stored,) = (await world.stored(topic)).partitions
        assert (stored.leader, stored.unknown) == (2, unknown)

    run(test)


@pytest.mark.parametrize(
    "damage",
    [
        {"brokers": [1]},
        {"brokers": None},
        {"fields": ["replicas", "isr", "leader"]},
        {"broker_lists": 7},
        {"partitions": [["ab", "a", 1]]},
        {"partitions": [[["a"], "a", 1, 7]]},
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_unreadable(damage: dict[str, Any]) -> None:
    value = json.loads(TOPIC.to_bytes(TOPIC_FORMAT_BY_NAME))
    with pytest.raises(Unreadable, match="topic orders"):
        TopicImage.from_bytes(as_bytes({**value, **damage}))


broker_lists = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(tuple)
unknown_fields = st.dictionaries(st.sampled_from(["adding", "removing"]), broker_lists, max_size=2).map(
    lambda fields: tuple(sorted(fields.items()))
)
partition_states = st.builds(
    PartitionState, broker_lists, broker_lists, st.integers(-1, 9), st.integers(0, 9), unknown_fields
)


@given(st.lists(partition_states, max_size=40), st.sampled_from(FORMATS))
def test_what_is_written_is_read_again(states: list[PartitionState], topic_format: int) -> None:
    topic = TopicImage("orders", TOPIC_ID, tuple(states), MappingProxyType({"é\ud800": '"'}))
    assert TopicImage.from_bytes(topic.to_bytes(topic_format)) == topic


@pytest.mark.parametrize("brokers", [1, 90, 91, 92, 93, 5000])
def test_topics_may_be_on_any_number_of_brokers(brokers: int) -> None:
    ids = range(1000, 1000 + brokers)
    states = tuple(PartitionState((broker_id, ids[0]), (broker_id,), broker_id, 0) for broker_id in ids)
    topic = TopicImage("orders", TOPIC_ID, states, MappingProxyType({}))
    assert TopicImage.from_bytes(topic.to_bytes(TOPIC_FORMAT_BY_NAME)) == topic


def test_an_isr_never_takes_more_room_than_the_replicas() -> None:
    replicas = tuple(range(1000, 1200))
    full = TopicImage("orders", TOPIC_ID, (PartitionState(replicas, replicas, 1, 0),), MappingProxyType({}))
    for isr in (replicas[::-1], replicas[100:], replicas[:1], ()):
        changed = replace(full, partitions=(PartitionState(replicas, isr, 1, 0),))
        assert len(changed.to_bytes(TOPIC_FORMAT_BY_NAME)) <= len(full.to_bytes(TOPIC_FORMAT_BY_NAME))
