"""ArchiveCommit, version 0, flexible: makes a manifest the newest of a topic's archive.

Odd: an API of our own, for those who archive. It is refused with INVALID_UPDATE_VERSION where the archive is not at the
expected version any more.
"""

from __future__ import annotations

from tailrace.model import Lineage
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, array, int16, int64, lineage_uuid, string
from tailrace.wire.messages.archive_describe import ArchivedPartition


class ArchiveCommitRequest(Message):
    """Asks to have a commit of an archive take the place of the one before it."""

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
    """The version that the archive is at now, or why it is not."""

    API_KEY = ApiKey.ARCHIVE_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    version: int = int64(default=-1)
