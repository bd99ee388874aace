"""What of a topic is archived: the one truth about its archive, a small value in the store beside the topic.

Ranges only grow at their ends and shrink at their starts, and every commit names the version that it was made on, so
that of two who archive at once one is refused. It must not know files: the manifest is a name that means something to
the readers of the archive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from tailrace.cluster.keys import known_format, reading, unknown_fields
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage

_FORMAT = 1
_KEYS = ("format", "topic_id", "version", "uri", "manifest", "partitions", "deleted_below")
#: The version of an archive that nothing was committed to yet.
NOTHING_ARCHIVED = 0


class ArchivedRange(NamedTuple):
    """The offsets of one partition that are in the archive, from `start` up to `end`, which is not."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The archive of one topic as it was last committed."""

    lineage: Lineage
    #: How often something was committed.
    version: int = NOTHING_ARCHIVED
    #: Where it was when that was done.
    uri: str = ""
    #: The name of the manifest that says which files there are.
    manifest: str = ""
    partitions: Mapping[int, ArchivedRange] = field(default_factory=dict)
    #: Below which offsets records were deleted, by partition, wherever they are.
    deleted_below: Mapping[int, int] = field(default_factory=dict)
    #: Fields that a newer release wrote.
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def readable(self, partition: int) -> ArchivedRange | None:
        """What of a partition may be read from the archive; None where that is nothing."""
        archived = self.partitions.get(partition)
        if archived is None:
            return None
        start = max(archived.start, self.deleted_below.get(partition, 0))
        return ArchivedRange(start, archived.end) if start < archived.end else None

    def archived_end(self, partition: int) -> int:
        """Below which offset nothing of a partition is left to archive."""
        archived = self.partitions.get(partition)
        return 0 if archived is None else archived.end

    def to_bytes(self) -> bytes:
        """As the store holds it."""
        return json.dumps(
            {
                **self.unknown,
                "format": _FORMAT,
                "topic_id": str(self.lineage),
                "version": self.version,
                "uri": self.uri,
                "manifest": self.manifest,
                "partitions": {str(number): list(archived) for number, archived in self.partitions.items()},
                "deleted_below": {str(number): offset for number, offset in self.deleted_below.items()},
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> ArchiveState:
        data: dict[str, Any] = known_format(value, _FORMAT, "an archive's state", "format")
        with reading("an archive's state"):
            return cls(
                Lineage(UUID(data["topic_id"])),
                data["version"],
                data["uri"],
                data["manifest"],
                MappingProxyType({int(number): ArchivedRange(*ends) for number, ends in data["partitions"].items()}),
                MappingProxyType({int(number): offset for number, offset in data["deleted_below"].items()}),
                unknown_fields(data, _KEYS),
            )


@dataclass(frozen=True, slots=True)
class ArchiveCommit:
    """What somebody who has written files wants to be the archive of a topic."""

    expected_version: int
    uri: str
    manifest: str
    #: The whole range of each partition that changes; others stay as they are.
    partitions: Mapping[int, ArchivedRange]

    def applied_to(self, state: ArchiveState) -> ArchiveState:
        """The archive after this commit, or the reason why not; a commit that was made already changes nothing."""
        if (state.version, state.manifest) == (self.expected_version + 1, self.manifest):
            return state  # asked again because its answer was lost
        if state.version != self.expected_version:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"The archive is at version {state.version}, and this commit was made on version "
                f"{self.expected_version}: somebody else archives too. Describe the archive and go on from there.",
            )
        for number, archived in self.partitions.items():
            _check_range(number, archived, state.partitions.get(number))
        return replace(
            state,
            version=state.version + 1,
            uri=self.uri,
            manifest=self.manifest,
            partitions=MappingProxyType({**state.partitions, **self.partitions}),
        )


def _check_range(number: int, archived: ArchivedRange, former: ArchivedRange | None) -> None:
    if not 0 <= archived.start <= archived.end:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Partition {number}: {archived.start} to {archived.end} is no range of offsets."
        )
    if former is not None and (archived.start < former.start or archived.end < former.end):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Partition {number}: offsets {former.start} to {former.end} are archived. A commit may add at the end and "
            f"take away at the start, but {archived.start} to {archived.end} does the opposite.",
        )


def with_deleted(state: ArchiveState, offsets: Mapping[int, int]) -> ArchiveState:
    """The archive after records were deleted below offsets."""
    below = dict(state.deleted_below)
    for number, offset in offsets.items():
        below[number] = max(offset, below.get(number, 0))
    return state if below == state.deleted_below else replace(state, deleted_below=MappingProxyType(below))
