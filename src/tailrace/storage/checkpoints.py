"""Small text files in Kafka's checkpoint format: a version, a count, and a line an entry.

Replaced whole and atomically, so a crash leaves the old content or the new. One that cannot be read is treated
as absent: every checkpoint only saves work that can be done again from the log.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from uuid import UUID

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.disk import Directory, Disk

logger = logging.getLogger("tailrace.storage")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
#: In a partition's directory: below which offset compaction may have left gaps.
COMPACTED = "compaction-checkpoint"
PARTITION_METADATA = "partition.metadata"
_VERSION = 0


def render_lines(lines: Iterable[str]) -> bytes:
    """A checkpoint file of the given entries."""
    entries = list(lines)
    return "\n".join([str(_VERSION), str(len(entries)), *entries, ""]).encode()


def parse_lines(content: bytes) -> list[list[str]]:
    """The entries of a checkpoint file, split into words; ValueError where it is not one."""
    lines = content.decode().split("\n")
    if int(lines[0]) != _VERSION:
        raise ValueError(f"checkpoint version {lines[0]} is newer than this software")
    # The last line ends too, or a number on it may have lost digits.
    if len(lines) < 3 or lines.pop() != "" or int(lines[1]) != len(lines) - 2:
        raise ValueError(f"checkpoint of {len(content)} bytes is cut short")
    return [line.split(" ") for line in lines[2:]]


def parse_offsets(content: bytes) -> dict[TopicPartition, int]:
    """The offsets by partition of a checkpoint file; ValueError where it is not one."""
    return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in parse_lines(content)}


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Offsets by partition; empty where the file is absent or unreadable."""
    content = disk.read_file(path)
    if content is None:
        return {}
    try:
        return parse_offsets(content)
    except ValueError as error:
        logger.warning("checkpoint %s is unreadable and ignored: %s", path, error)
        return {}


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a file of offsets by partition, durably."""
    disk.replace_file(path, render_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()))


def read_gaps_below(disk: Disk, directory: str) -> int | None:
    """Below which offset a log may have gaps; None where the file that says so is unreadable."""
    content = disk.read_file(f"{directory}/{COMPACTED}")
    if content is None:
        return 0
    try:
        ((offset,),) = parse_lines(content)
        return int(offset)
    except ValueError as error:
        logger.warning("%s/%s is unreadable: gaps may be anywhere: %s", directory, COMPACTED, error)
        return None


def write_gaps_below(directory: Directory, offset: int, *, sync: bool = True) -> None:
    """Say that compaction may leave gaps below an offset, or may have done so on a leader, before there are any."""
    directory.replace_file(COMPACTED, render_lines([str(offset)]), sync=sync)


def encode_uuid(value: UUID) -> str:
    """A UUID as Kafka writes it in files and messages: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def read_topic_id(disk: Disk, directory: str) -> UUID | None:
    """The topic that a partition directory belongs to; None where the directory does not say."""
    content = disk.read_file(f"{directory}/{PARTITION_METADATA}")
    if content is None:
        return None
    fields = dict(line.split(": ", 1) for line in content.decode(errors="replace").split("\n") if ": " in line)
    version = fields.get("version", "")
    if version.isdecimal() and int(version) > 0:
        raise StorageError(f"{directory}/{PARTITION_METADATA} has version {version}, this software knows 0")
    try:
        return decode_uuid(fields["topic_id"]) if version else None
    except (KeyError, ValueError):
        # A power cut before the first sync may leave the file empty: that must not keep the broker from starting.
        return None


def write_topic_id(directory: Directory, topic_id: UUID, *, sync: bool) -> None:
    """Say which topic a partition directory belongs to."""
    content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode()
    directory.replace_file(PARTITION_METADATA, content, sync=sync)
