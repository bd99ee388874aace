"""Small text files in Kafka's checkpoint format: a version, a count, and a line an entry.

Replaced whole and atomically, so a crash leaves the old content or the new. One that cannot be read is treated
as absent: every checkpoint only saves work that can be done again from the log.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from tailrace.model import TopicPartition
from tailrace.runtime.disk import Directory, Disk

logger = logging.getLogger("tailrace.storage")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
#: In a partition's directory: where compaction may have left gaps.
COMPACTED = "compaction-checkpoint"
_VERSION = 0
_ANYWHERE = 2**63 - 1


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


class Gaps(NamedTuple):
    """Where a log may have gaps between offsets."""

    #: A batch that follows a gap in its segment begins below this offset.
    within_below: int = 0
    #: A segment that follows a gap begins at or below this offset. All up to there was durable when this was written;
    #: beyond, a gap means that what was between is lost.
    between_up_to: int = 0


NO_GAPS = Gaps()


def read_gaps(disk: Disk, directory: str) -> Gaps:
    """Where a log may have gaps; anywhere within its segments if the file that says so is unreadable."""
    content = disk.read_file(f"{directory}/{COMPACTED}")
    if content is None:
        return NO_GAPS
    try:
        ((within, *more),) = parse_lines(content)
        # Earlier versions have written one number for both.
        (between,) = more or [within]
        return Gaps(int(within), int(between))
    except ValueError as error:
        logger.warning("%s/%s is unreadable: gaps may be anywhere: %s", directory, COMPACTED, error)
        return Gaps(_ANYWHERE)


def write_gaps(directory: Directory, gaps: Gaps, *, sync: bool = True) -> None:
    """Say where compaction may leave gaps, or may have done so on a leader, before recovery could find any."""
    directory.replace_file(COMPACTED, render_lines([f"{gaps.within_below} {gaps.between_up_to}"]), sync=sync)


def encode_uuid(value: UUID) -> str:
    """A UUID as Kafka writes it in files and messages: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
