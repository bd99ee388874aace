"""The state of a topic's archive: the single source of truth, a small value in the store beside the topic.

Ranges only grow at their ends and shrink at their starts. Every commit names the version it is based on, so one of two
concurrent archivers is refused. This module knows nothing of files: the manifest is a name for the readers of the
archive.
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
#: The version of an archive without any commit.
NOTHING_ARCHIVED = 0


class ArchivedRange(NamedTuple):
    """The archived offsets of one partition, from `start` up to but excluding `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The archive of one topic as of its last commit."""

    lineage: Lineage
    #: The number of commits so far.
    version: int = NOTHING_ARCHIVED
    #: Its location at the last commit.
    uri: str = ""
    #: The name of the manifest, which lists the files.
    manifest: str = ""
    partitions: Mapping[int, ArchivedRange] = field(default_factory=dict)
    #: The offset per partition below which records were deleted, wherever they are stored.
    deleted_below: Mapping[int, int] = field(default_factory=dict)
    #: Fields that a newer release wrote.
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def readable(self, partition: int) -> ArchivedRange | None:
        """The offsets of a partition that can be read from the archive; None if there are none."""
        archived = self.partitions.get(partition)
        if archived is None:
            return None
        start = max(archived.start, self.deleted_below.get(partition, 0))
        return ArchivedRange(start, archived.end) if start < archived.end else None

    def archived_end(self, partition: int) -> int:
        """The offset below which nothing of a partition is left to archive."""
        archived = self.partitions.get(partition)
        return 0 if archived is None else archived.end

    def to_bytes(self) -> bytes:
        """The stored form."""
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
    """An archiver's request to make its manifest and ranges the topic's archive."""

    expected_version: int
    uri: str
    manifest: str
    #: The whole range of each partition that changes; others keep theirs.
    partitions: Mapping[int, ArchivedRange]

    def applied_to(self, state: ArchiveState) -> ArchiveState:
        """The archive after this commit; raises if it is refused. A commit that was already applied changes nothing."""
        if (state.version, state.manifest) == (self.expected_version + 1, self.manifest):
            return state  # a retry, because the first answer was lost
        if state.version != self.expected_version:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"The archive is at version {state.version}, but this commit is based on version "
                f"{self.expected_version}: another archiver has committed. Describe the archive and start again there.",
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
            ErrorCode.INVALID_REQUEST,
            f"Partition {number}: {archived.start} to {archived.end} is not a valid range of offsets.",
        )
    if former is not None and (archived.start < former.start or archived.end < former.end):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Partition {number}: offsets {former.start} to {former.end} are archived. A commit may only add at the "
            f"end and remove at the start, but this one is {archived.start} to {archived.end}.",
        )


def with_deleted(state: ArchiveState, offsets: Mapping[int, int]) -> ArchiveState:
    """The archive after records below these offsets were deleted."""
    below = dict(state.deleted_below)
    for number, offset in offsets.items():
        below[number] = max(offset, below.get(number, 0))
    return state if below == state.deleted_below else replace(state, deleted_below=MappingProxyType(below))
