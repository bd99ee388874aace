"""Sets of partitions by lineage, as the newer group protocol moves them around: immutable values and their algebra."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tailrace.groups.records import TopicPartitions
from tailrace.model import Lineage

#: No topic has an empty set.
Assignment: TypeAlias = Mapping[Lineage, frozenset[int]]

NOTHING: Assignment = MappingProxyType({})


def nothing() -> Assignment:
    """No partition at all."""
    return NOTHING


def of_pairs(pairs: Iterable[tuple[Lineage, int]]) -> Assignment:
    """The partitions named one by one."""
    topics: dict[Lineage, set[int]] = {}
    for lineage, partition in pairs:
        topics.setdefault(lineage, set()).add(partition)
    return {lineage: frozenset(numbers) for lineage, numbers in topics.items()}


def pairs_of(assignment: Assignment) -> Iterator[tuple[Lineage, int]]:
    """Each partition, in the order of topics as they stand and of numbers."""
    for lineage, numbers in assignment.items():
        for number in sorted(numbers):
            yield lineage, number


def both(one: Assignment, other: Assignment) -> Assignment:
    """What is in both."""
    found = {lineage: numbers & other.get(lineage, frozenset()) for lineage, numbers in one.items()}
    return {lineage: numbers for lineage, numbers in found.items() if numbers}


def without(one: Assignment, other: Assignment) -> Assignment:
    """What is only in the first."""
    found = {lineage: numbers - other.get(lineage, frozenset()) for lineage, numbers in one.items()}
    return {lineage: numbers for lineage, numbers in found.items() if numbers}


def either(one: Assignment, other: Assignment) -> Assignment:
    """What is in one or the other."""
    topics = dict(one)
    for lineage, numbers in other.items():
        topics[lineage] = topics.get(lineage, frozenset()) | numbers
    return topics


def contains(one: Assignment, other: Assignment) -> bool:
    """Whether all of the second is in the first."""
    return all(numbers <= one.get(lineage, frozenset()) for lineage, numbers in other.items())


def from_records(topics: Iterable[TopicPartitions]) -> Assignment:
    """As a record holds it."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def to_records(assignment: Assignment) -> list[TopicPartitions]:
    """As a record holds it."""
    return [TopicPartitions(topic_id=lineage, partitions=sorted(numbers)) for lineage, numbers in assignment.items()]
