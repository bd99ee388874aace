"""Small text files in Kafka's checkpoint format: a version, a count, and one entry per line.

Each file is replaced as a whole and atomically, so a crash leaves the old content or the new. An unreadable file is
treated as absent: a checkpoint only saves work that can be redone from the log.
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
#: In a partition's directory: the offsets where compaction may have left gaps.
COMPACTED = "compaction-checkpoint"
_VERSION = 0
_ANYWHERE = 2**63 - 1


def render_lines(lines: Iterable[str]) -> bytes:
    """The content of a checkpoint file with these entries."""
    entries = list(lines)
    return "\n".join([str(_VERSION), str(len(entries)), *entries, ""]).encode()


def parse_lines(content: bytes) -> list[list[str]]:
    """The entries of a checkpoint file, split into words; ValueError if the file is malformed."""
    lines = content.decode().split("\n")
    if int(lines[0]) != _VERSION:
        raise ValueError(f"checkpoint version {lines[0]} is newer than this software")
    # The last line must end with a newline, otherwise its number may have lost digits.
    if len(lines) < 3 or lines.pop() != "" or int(lines[1]) != len(lines) - 2:
        raise ValueError(f"checkpoint of {len(content)} bytes is truncated")
    return [line.split(" ") for line in lines[2:]]


def parse_offsets(content: bytes) -> dict[TopicPartition, int]:
    """The offsets by partition in a checkpoint file; ValueError if the file is malformed."""
    return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in parse_lines(content)}


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Offsets by partition; empty if the file is missing or unreadable."""
    content = disk.read_file(path)
    if content is None:
        return {}
    try:
        return parse_offsets(content)
    except ValueError as error:
        logger.warning("Ignored unreadable checkpoint %s: %s", path, error)
        return {}


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a file of offsets by partition, durably."""
    disk.replace_file(path, render_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()))


class Gaps(NamedTuple):
    """The offsets below which a log may have gaps."""

    #: A batch that follows a gap inside its segment starts below this offset.
    within_below: int = 0
    #: A segment that follows a gap starts at or below this offset. Everything up to it was durable when this was
    #: written. Beyond it, a gap means that records are lost.
    between_up_to: int = 0


NO_GAPS = Gaps()


def read_gaps(disk: Disk, directory: str) -> Gaps:
    """Where a log may have gaps; if the file is unreadable, anywhere within its segments."""
    content = disk.read_file(f"{directory}/{COMPACTED}")
    if content is None:
        return NO_GAPS
    try:
        ((within, *more),) = parse_lines(content)
        # Earlier versions wrote one number for both.
        (between,) = more or [within]
        return Gaps(int(within), int(between))
    except ValueError as error:
        logger.warning("Cannot read %s/%s, so gaps are allowed anywhere in the log: %s", directory, COMPACTED, error)
        return Gaps(_ANYWHERE)


def write_gaps(directory: Directory, gaps: Gaps, *, sync: bool = True) -> None:
    """Write where compaction may leave gaps, or may have left them on a leader, before recovery could find any."""
    directory.replace_file(COMPACTED, render_lines([f"{gaps.within_below} {gaps.between_up_to}"]), sync=sync)


def encode_uuid(value: UUID) -> str:
    """A UUID in Kafka's text form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
