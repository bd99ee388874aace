"""ArchiveDescribe, versions 0 and 1, flexible: the archives of topics, and whether the broker can read them.

Odd: an API of our own, for archivers and for readers of archives. A topic without an archive is at version 0.
"""

from __future__ import annotations

from tailrace.model import Lineage
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, int64, lineage_uuid, string


class ArchivedPartition(Struct):
    """The archived offsets of one partition, from start up to end (exclusive)."""

    partition_index: int = int32()
    start_offset: int = int64()
    end_offset: int = int64()


class ArchiveDescribeRequest(Message):
    """Requests the archives of topics, by name."""

    API_KEY = ApiKey.ARCHIVE_DESCRIBE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    topics: list[str] = array(Kind.STRING)
    #: Whether the broker should check now that it can read the archives.
    checks_reading: bool = boolean(since=1)


class DescribedPartition(Struct):
    """One partition: its archived offsets, and the offset below which records were deleted."""

    partition_index: int = int32()
    start_offset: int = int64()
    end_offset: int = int64()
    deleted_below: int = int64()


class DescribedArchive(Struct):
    """The archive of one topic."""

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    name: str = string()
    lineage: Lineage = lineage_uuid()
    is_enabled: bool = boolean()
    uri: str = string()
    retention_ms: int = int64(default=-1)
    version: int = int64()
    manifest: str = string()
    partitions: list[DescribedPartition] = array(DescribedPartition)
    #: Why this broker cannot read the archive; None if it can, or was not asked to check.
    read_failure: str | None = string(since=1, nullable_from=1, default=None)


class ArchiveDescribeResponse(Message):
    """The archive of each topic."""

    API_KEY = ApiKey.ARCHIVE_DESCRIBE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    archives: list[DescribedArchive] = array(DescribedArchive)
