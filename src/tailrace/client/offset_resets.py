"""Resets of a group's offsets: a plan of new offsets, computed before anything changes.

Owns the meaning of each kind of target, and the file of a plan: lines of topic, partition and offset, as Kafka's own
tool writes them. An offset that a log does not have becomes the nearest one that it has.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from confluent_kafka.admin import OffsetSpec

from tailrace.client.errors import ClientError, GroupHasMembersError, UnknownTopicError
from tailrace.client.groups import GroupDescription, Groups, Place


class Edge(Enum):
    """Targets without a number."""

    EARLIEST = "earliest"
    LATEST = "latest"
    #: The group's present offsets: to save them in a file.
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in milliseconds since the Unix epoch."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """This many offsets forward from the group's offset, or backward."""

    offsets: int


@dataclass(frozen=True, slots=True)
class Given:
    """An offset for each partition, as a file gives it."""

    offsets: Mapping[Place, int]


Target: TypeAlias = Edge | AtOffset | AtTime | ShiftBy | Given


class Scope(Protocol):
    """The partitions of a plan."""

    def places(self, committed: Iterable[Place], partitions: Mapping[str, int]) -> Sequence[Place]: ...


@dataclass(frozen=True, slots=True)
class AllTopics:
    """Every partition of every topic in which the group has committed offsets."""

    def places(self, committed: Iterable[Place], partitions: Mapping[str, int]) -> Sequence[Place]:
        names = sorted({topic for topic, _ in committed if topic in partitions})
        return [(name, number) for name in names for number in range(partitions[name])]


@dataclass(frozen=True, slots=True)
class SomeTopics:
    """Topics by name, each with some partitions, or None for all of them."""

    topics: Mapping[str, Sequence[int] | None]

    def places(self, committed: Iterable[Place], partitions: Mapping[str, int]) -> Sequence[Place]:
        found: list[Place] = []
        for name, numbers in self.topics.items():
            wanted = range(partitions.get(name, 0)) if numbers is None else numbers
            _check_exists(name, wanted, partitions)
            found += [(name, number) for number in wanted]
        return found


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The change of a plan in one partition."""

    topic: str
    partition: int
    #: The committed offset, None if there is none.
    before: int | None
    after: int
    #: The requested offset, if the log does not have it.
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes, and the group; None if it does not exist yet."""

    group: str
    description: GroupDescription | None
    changes: tuple[OffsetChange, ...]


def plan(groups: Groups, group: str, scope: Scope | None, target: Target) -> Plan:
    """Compute a plan without changing anything; `Given` has its own scope."""
    description = groups.find(group)
    committed = groups.committed(group)
    partitions = groups.partitions()
    if isinstance(target, Given):
        places: Sequence[Place] = list(target.offsets)
        for topic, number in places:
            _check_exists(topic, [number], partitions)
    else:
        assert scope is not None
        places = scope.places(committed, partitions)
    if not places:
        raise ClientError(
            f"group '{group}' has no committed offsets, so its topics are unknown; name them with --topic"
        )
    earliest = groups.offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    latest = groups.offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    moments: Mapping[Place, int] = {}
    if isinstance(target, AtTime):
        spec = OffsetSpec.for_timestamp(target.timestamp_ms)
        moments = groups.offsets(places, spec)
    changes: list[OffsetChange] = []
    for place in places:
        wanted = _wanted(target, place, committed.get(place), earliest[place], latest[place], moments)
        if wanted is None:
            continue
        # The group's present offset is kept, whether the log still has it or not.
        after = wanted if target is Edge.CURRENT else min(max(wanted, earliest[place]), latest[place])
        changes.append(OffsetChange(*place, committed.get(place), after, None if after == wanted else wanted))
    return Plan(group, description, tuple(changes))


def apply(groups: Groups, planned: Plan) -> None:
    """Apply a plan; `GroupHasMembersError` if the group has members."""
    check_unused(planned)
    groups.set_offsets(planned.group, {(change.topic, change.partition): change.after for change in planned.changes})


def check_unused(planned: Plan) -> None:
    """Refuse a plan for a group with members: they would continue from their own offsets and overwrite the plan's."""
    members = () if planned.description is None else planned.description.members
    if members:
        clients = ", ".join(sorted({member.client_id for member in members}))
        count = "1 member" if len(members) == 1 else f"{len(members)} members"
        raise GroupHasMembersError(
            f"group '{planned.group}' has {count} ({clients}), which would commit over any other offset; stop "
            f"them first and retry when this shows none: tailrace group describe {planned.group} --members"
        )


def _wanted(
    target: Target, place: Place, committed: int | None, earliest: int, latest: int, moments: Mapping[Place, int]
) -> int | None:
    """Return the target offset of one partition; None if there is nothing to do."""
    match target:
        case Edge.EARLIEST:
            return earliest
        case Edge.LATEST:
            return latest
        case Edge.CURRENT:
            return committed
        case AtOffset(offset):
            return offset
        case AtTime():
            return latest if moments[place] < 0 else moments[place]
        case ShiftBy(offsets):
            if committed is None:
                raise ClientError(
                    f"nothing is committed in {place[0]}-{place[1]}, so there is no offset to shift; use --to "
                    "there, or name only the other partitions with --topic"
                )
            return committed + offsets
        case Given(given):
            return given[place]


def _check_exists(topic: str, numbers: Iterable[int], partitions: Mapping[str, int]) -> None:
    if topic not in partitions:
        raise UnknownTopicError(f"topic '{topic}' does not exist; list all topics with: tailrace topic list")
    for number in numbers:
        if number >= partitions[topic]:
            raise UnknownTopicError(f"topic '{topic}' has no partition {number}; it has {partitions[topic]}")


# --- as a file


def to_csv(changes: Iterable[OffsetChange]) -> str:
    """Format a plan as lines of topic, partition and offset."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for change in changes:
        writer.writerow((change.topic, change.partition, change.after))
    return output.getvalue()


def from_csv(text: str, name: str) -> Given:
    """Parse such lines; ClientError names an invalid one. Comments and empty lines are skipped."""
    offsets: dict[Place, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row or row[0].startswith("#"):
            continue
        where = f"{name}, line {number}"
        if len(row) != 3:
            raise ClientError(f"{where}: expected topic,partition,offset but found {','.join(row)}")
        topic = row[0].strip()
        try:
            partition, offset = int(row[1]), int(row[2])
        except ValueError:
            raise ClientError(f"{where}: partition and offset must be numbers, not {row[1]} and {row[2]}") from None
        if partition < 0 or offset < 0 or not topic:
            raise ClientError(f"{where}: {','.join(row)} has no topic, or a number below 0")
        if (topic, partition) in offsets:
            raise ClientError(f"{where}: {topic}-{partition} appears twice")
        offsets[topic, partition] = offset
    if not offsets:
        raise ClientError(f"{name} has no offsets; expected lines such as orders,0,42")
    return Given(offsets)
