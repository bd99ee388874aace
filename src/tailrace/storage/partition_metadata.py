"""The file that names the topic of a partition's directory, and the first segment of its log.

Invariant: on disk, the first segment of a log contains the first offset in the file, or starts there. Earlier segments
are being removed. If there is no such segment, a power failure took the names of the log's first segments. So the first
offset is durable before retention removes segments, and before the first record of a log that restarts.
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
    """The metadata of the log in a partition's directory."""

    def __init__(self, directory: Directory, topic_id: UUID, first_offset: int | None = None) -> None:
        self.topic_id = topic_id
        #: The log starts with the segment that contains this offset; None for a directory made by an earlier version.
        self.first_offset = first_offset
        #: Whether a sync has nothing to write.
        self.is_durable = True
        self._directory = directory
        # After any crash the file has at least this offset.
        self._durable_offset = -1 if first_offset is None else first_offset

    def allows_start_at(self, offset: int) -> bool:
        """Whether segments before an offset may be removed, so that any crash leaves a sound log."""
        return offset <= self._durable_offset

    def move_start(self, offset: int) -> None:
        """Let the log start at an offset; the next sync makes that durable."""
        if offset != self.first_offset:
            self.first_offset = offset
            self._durable_offset = min(self._durable_offset, offset)
            self.is_durable = False

    def vouched(self, offset: int) -> None:
        """Allow the removal of segments before an offset, which the recovery point on disk has reached."""
        if self.first_offset is not None:
            self._durable_offset = max(self._durable_offset, min(offset, self.first_offset))

    def write(self, *, sync: bool) -> None:
        """Write the file; blocks if `sync`."""
        first_offset = self.first_offset
        write_metadata(self._directory, self.topic_id, first_offset, sync=sync)
        if sync and first_offset is not None:
            self._durable_offset = first_offset
            self.is_durable = first_offset == self.first_offset

    def write_soon(self) -> None:
        """Write the file so that it survives the process; the next sync makes it durable."""
        try:
            self.write(sync=False)
        except PassingStorageError as error:
            logger.warning("Cannot write %s/%s now, will retry: %s", self._directory.path, PARTITION_METADATA, error)


def read_topic_id(disk: Disk, directory: str) -> UUID | None:
    """The topic that a partition directory belongs to; None if the directory does not name one."""
    found = read_metadata(disk, directory)
    return None if found is None else found[0]


def read_metadata(disk: Disk, directory: str) -> tuple[UUID, int | None] | None:
    """The topic of a partition directory, and the first offset of its log; None if it does not name a topic."""
    content = disk.read_file(f"{directory}/{PARTITION_METADATA}")
    if content is None:
        return None
    fields = dict(line.split(": ", 1) for line in content.decode(errors="replace").split("\n") if ": " in line)
    version = fields.get("version", "")
    if version.isdecimal() and int(version) > 0:
        raise StorageError(f"{directory}/{PARTITION_METADATA} has version {version}, expected 0")
    try:
        topic_id = decode_uuid(fields["topic_id"]) if version else None
    except (KeyError, ValueError):
        # A power failure before the first sync may leave the file empty, which must not prevent a start.
        return None
    first = fields.get(_FIRST_OFFSET, "")
    # The last line must end with a newline, otherwise its number may have lost digits.
    is_whole = first.isdecimal() and first.isascii() and content.endswith(b"\n")
    return None if topic_id is None else (topic_id, int(first) if is_whole else None)


def write_metadata(directory: Directory, topic_id: UUID, first_offset: int | None, *, sync: bool) -> None:
    """Write which topic a partition directory belongs to, and where its log starts."""
    lines = ["version: 0", f"topic_id: {encode_uuid(topic_id)}"]
    if first_offset is not None:
        lines.append(f"{_FIRST_OFFSET}: {first_offset}")
    directory.replace_file(PARTITION_METADATA, "".join(f"{line}\n" for line in lines).encode(), sync=sync)
