"""The file that says which topic a partition's directory belongs to, and with which segment its log starts.

Invariant: on disk, the first segment of a log holds the first offset in the file, or begins there. Segments before it
are on their way out; a log without it has lost the names of its first segments in a power cut. So the first offset is
durable before retention takes segments out, and before the first record of a log that begins anew.
"""

from __future__ import annotations

import logging
from uuid import UUID

from tailrace.errors import StorageError
from tailrace.runtime.disk import Directory, Disk, PassingStorageError
from tailrace.storage.checkpoints import decode_uuid, encode_uuid

logger = logging.getLogger("tailrace.storage")

PARTITION_METADATA = "partition.metadata"
_FIRST_OFFSET = "first_offset"


class PartitionMetadata:
    """What a partition's directory says of the log in it."""

    def __init__(self, directory: Directory, topic_id: UUID, first_offset: int | None = None) -> None:
        self.topic_id = topic_id
        #: The log starts with the segment that holds this offset; None where an earlier version made the directory.
        self.first_offset = first_offset
        #: Whether a sync has nothing to write.
        self.is_durable = True
        self._directory = directory
        # Whatever crashes, the file says no less than this.
        self._durable_offset = -1 if first_offset is None else first_offset

    def allows_start_at(self, offset: int) -> bool:
        """Whether segments before an offset may go, whatever crashes."""
        return offset <= self._durable_offset

    def move_start(self, offset: int) -> None:
        """Let the log start at an offset; the next sync makes that durable."""
        if offset != self.first_offset:
            self.first_offset = offset
            self._durable_offset = min(self._durable_offset, offset)
            self.is_durable = False

    def vouched(self, offset: int) -> None:
        """Segments before an offset may go, because the recovery point on disk is there or beyond."""
        if self.first_offset is not None:
            self._durable_offset = max(self._durable_offset, min(offset, self.first_offset))

    def write(self, *, sync: bool) -> None:
        """Write the file; blocks where it is synced."""
        first_offset = self.first_offset
        write_metadata(self._directory, self.topic_id, first_offset, sync=sync)
        if sync and first_offset is not None:
            self._durable_offset = first_offset
            self.is_durable = first_offset == self.first_offset

    def write_soon(self) -> None:
        """Write the file for whoever finds it after the end of this process; the next sync makes it durable."""
        try:
            self.write(sync=False)
        except PassingStorageError as error:
            logger.warning("%s/%s is written later: %s", self._directory.path, PARTITION_METADATA, error)


def read_topic_id(disk: Disk, directory: str) -> UUID | None:
    """The topic that a partition directory belongs to; None where the directory does not say."""
    found = read_metadata(disk, directory)
    return None if found is None else found[0]


def read_metadata(disk: Disk, directory: str) -> tuple[UUID, int | None] | None:
    """The topic that a partition directory belongs to and where its log starts; None where it does not say."""
    content = disk.read_file(f"{directory}/{PARTITION_METADATA}")
    if content is None:
        return None
    fields = dict(line.split(": ", 1) for line in content.decode(errors="replace").split("\n") if ": " in line)
    version = fields.get("version", "")
    if version.isdecimal() and int(version) > 0:
        raise StorageError(f"{directory}/{PARTITION_METADATA} has version {version}, this software knows 0")
    try:
        topic_id = decode_uuid(fields["topic_id"]) if version else None
    except (KeyError, ValueError):
        # A power cut before the first sync may leave the file empty: that must not keep the broker from starting.
        return None
    first = fields.get(_FIRST_OFFSET, "")
    # The last line ends too, or the number on it may have lost digits.
    is_whole = first.isdecimal() and first.isascii() and content.endswith(b"\n")
    return None if topic_id is None else (topic_id, int(first) if is_whole else None)


def write_metadata(directory: Directory, topic_id: UUID, first_offset: int | None, *, sync: bool) -> None:
    """Say which topic a partition directory belongs to, and where its log starts."""
    lines = ["version: 0", f"topic_id: {encode_uuid(topic_id)}"]
    if first_offset is not None:
        lines.append(f"{_FIRST_OFFSET}: {first_offset}")
    directory.replace_file(PARTITION_METADATA, "".join(f"{line}\n" for line in lines).encode(), sync=sync)
