"""Sets of partitions by topic lineage, which the newer group protocol assigns: immutable values and set operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tailrace.groups.records import OwnedTopicPartitions, TopicPartitions
from tailrace.model import Lineage

#: A topic never maps to an empty set.
Assignment: TypeAlias = Mapping[Lineage, frozenset[int]]

NOTHING: Assignment = MappingProxyType({})


def nothing() -> Assignment:
    """Return an assignment without partitions."""
    return NOTHING


def of_pairs(pairs: Iterable[tuple[Lineage, int]]) -> Assignment:
    """Build an assignment from single partitions."""
    topics: dict[Lineage, set[int]] = {}
    for lineage, partition in pairs:
        topics.setdefault(lineage, set()).add(partition)
    return {lineage: frozenset(numbers) for lineage, numbers in topics.items()}


def pairs_of(assignment: Assignment) -> Iterator[tuple[Lineage, int]]:
    """Yield every partition: topics in the mapping's order, partitions in numerical order."""
    for lineage, numbers in assignment.items():
        for number in sorted(numbers):
            yield lineage, number


def both(one: Assignment, other: Assignment) -> Assignment:
    """Return the partitions that are in both assignments."""
    found = {lineage: numbers & other.get(lineage, frozenset()) for lineage, numbers in one.items()}
    return {lineage: numbers for lineage, numbers in found.items() if numbers}


def without(one: Assignment, other: Assignment) -> Assignment:
    """Return the partitions that are only in the first assignment."""
    found = {lineage: numbers - other.get(lineage, frozenset()) for lineage, numbers in one.items()}
    return {lineage: numbers for lineage, numbers in found.items() if numbers}


def either(one: Assignment, other: Assignment) -> Assignment:
    """Return the partitions that are in either assignment."""
    topics = dict(one)
    for lineage, numbers in other.items():
        topics[lineage] = topics.get(lineage, frozenset()) | numbers
    return topics


def contains(one: Assignment, other: Assignment) -> bool:
    """True if the first assignment contains all of the second."""
    return all(numbers <= one.get(lineage, frozenset()) for lineage, numbers in other.items())


def from_records(topics: Iterable[TopicPartitions | OwnedTopicPartitions]) -> Assignment:
    """Convert an assignment from its form in a record."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def owned_to_records(assignment: Assignment) -> list[OwnedTopicPartitions]:
    """Convert what a member owns to its form in a record."""
    return [
        OwnedTopicPartitions(topic_id=lineage, partitions=sorted(numbers)) for lineage, numbers in assignment.items()
    ]


def to_records(assignment: Assignment) -> list[TopicPartitions]:
    """Convert a target assignment to its form in a record."""
    return [TopicPartitions(topic_id=lineage, partitions=sorted(numbers)) for lineage, numbers in assignment.items()]
