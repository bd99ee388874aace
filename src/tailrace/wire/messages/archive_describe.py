"""ArchiveDescribe, versions 0 and 1, flexible: what of topics is archived, and whether the broker can read it.

Odd: an API of our own, for those who archive or read an archive themselves. A topic that nothing is archived of is at
version 0.
"""

from __future__ import annotations

from tailrace.model import Lineage
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, int64, lineage_uuid, string


class ArchivedPartition(Struct):
    """The offsets of one partition that are archived, from start up to end, which is not."""

    partition_index: int = int32()
    start_offset: int = int64()
    end_offset: int = int64()


class ArchiveDescribeRequest(Message):
    """Asks for the archives of topics, by name."""

    API_KEY = ApiKey.ARCHIVE_DESCRIBE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    topics: list[str] = array(Kind.STRING)
    #: Have the broker see now whether it can read the archives.
    checks_reading: bool = boolean(since=1)


class DescribedPartition(Struct):
    """One partition: what of it is archived, and below which offset records were deleted."""

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
    #: Why the broker that answers cannot read the archive; None where it can, or was not asked to see.
    read_failure: str | None = string(since=1, nullable_from=1, default=None)


class ArchiveDescribeResponse(Message):
    """What of each topic is archived."""

    API_KEY = ApiKey.ARCHIVE_DESCRIBE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    archives: list[DescribedArchive] = array(DescribedArchive)
