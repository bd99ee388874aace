"""Sets of partitions by topic id, as the newer group protocol moves them around: immutable values and their algebra."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from tailrace.groups.records import TopicPartitions

#: No topic has an empty set.
Assignment: TypeAlias = Mapping[UUID, frozenset[int]]

NOTHING: Assignment = MappingProxyType({})


def nothing() -> Assignment:
    """No partition at all."""
    return NOTHING


def of_pairs(pairs: Iterable[tuple[UUID, int]]) -> Assignment:
    """The partitions named one by one."""
    topics: dict[UUID, set[int]] = {}
    for topic_id, partition in pairs:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}


def pairs_of(assignment: Assignment) -> Iterator[tuple[UUID, int]]:
    """Each partition, in the order of topics as they stand and of numbers."""
    for topic_id, numbers in assignment.items():
        for number in sorted(numbers):
            yield topic_id, number


def both(one: Assignment, other: Assignment) -> Assignment:
    """What is in both."""
    found = {topic_id: numbers & other.get(topic_id, frozenset()) for topic_id, numbers in one.items()}
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def without(one: Assignment, other: Assignment) -> Assignment:
    """What is only in the first."""
    found = {topic_id: numbers - other.get(topic_id, frozenset()) for topic_id, numbers in one.items()}
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def either(one: Assignment, other: Assignment) -> Assignment:
    """What is in one or the other."""
    topics = dict(one)
    for topic_id, numbers in other.items():
        topics[topic_id] = topics.get(topic_id, frozenset()) | numbers
    return topics


def contains(one: Assignment, other: Assignment) -> bool:
    """Whether all of the second is in the first."""
    return all(numbers <= one.get(topic_id, frozenset()) for topic_id, numbers in other.items())


def from_records(topics: Iterable[TopicPartitions]) -> Assignment:
    """As a record holds it."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def to_records(assignment: Assignment) -> list[TopicPartitions]:
    """As a record holds it."""
    return [TopicPartitions(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in assignment.items()]
