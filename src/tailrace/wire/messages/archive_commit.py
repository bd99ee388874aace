"""ArchiveCommit, version 0, flexible: makes a manifest the newest of a topic's archive.

Odd: an API of our own, for archivers. It fails with INVALID_UPDATE_VERSION if the archive is no longer at the expected
version.
"""

from __future__ import annotations

from tailrace.model import Lineage
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, array, int16, int64, lineage_uuid, string
from tailrace.wire.messages.archive_describe import ArchivedPartition


class ArchiveCommitRequest(Message):
    """Commits a new version of an archive in place of the previous one."""

    API_KEY = ApiKey.ARCHIVE_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    lineage: Lineage = lineage_uuid()
    expected_version: int = int64()
    uri: str = string()
    manifest: str = string()
    partitions: list[ArchivedPartition] = array(ArchivedPartition)


class ArchiveCommitResponse(Message):
    """The new version of the archive, or the error."""

    API_KEY = ApiKey.ARCHIVE_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    version: int = int64(default=-1)
