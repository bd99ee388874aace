"""Rebuilds producer state from disk: from the newest valid snapshot of a log and every batch header after it.

This is done at a start and when a log is truncated. A replay may cover a whole segment, so it runs in steps between
which other tasks may run. A truncation removes the snapshots beyond it, and makes that durable before anything is
written in their place.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence

from tailrace.model import TopicPartition
from tailrace.runtime.disk import Disk
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.segment import SNAPSHOT_SUFFIX, CorruptSegmentError, Segment

logger = logging.getLogger("tailrace.storage")

#: How many headers are replayed in one step: about a millisecond.
_STEP_HEADERS = 500


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """The offsets of the snapshots in a partition's directory, oldest first."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in disk.list(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    return [int(stem) for stem in stems if stem.isdecimal()]


def snapshot_path(directory: str, offset: int) -> str:
    """The path of the producer snapshot at a log end."""
    return f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"


def remove_snapshots_beyond(disk: Disk, directory: str, end_offset: int) -> bool:
    """Remove the snapshots of removed records; returns whether there were any."""
    gone = [offset for offset in snapshot_offsets(disk, directory) if offset > end_offset]
    for offset in gone:
        disk.remove(snapshot_path(directory, offset))
    return bool(gone)


def find_producers(
    partition: TopicPartition, disk: Disk, directory: str, segments: Sequence[Segment], end_offset: int, most: int
) -> Generator[None, None, ProducerState]:
    """The producers of a log that ends at an offset, at most `most`, found in steps."""
    state, covered = _newest_snapshot(partition, disk, directory, segments[0].base_offset, end_offset)
    replayed = 0
    for segment in segments:
        if segment.end_offset <= covered or segment.base_offset >= end_offset:
            continue
        try:
            start = segment.position_of(covered) if covered > segment.base_offset else 0
            for _, header in segment.headers(start or 0):
                if header.next_offset > end_offset:
                    break
                if header.base_offset >= covered:
                    state.replay(header, most)
                replayed += 1
                if replayed % _STEP_HEADERS == 0:
                    yield
        except CorruptSegmentError as error:
            logger.error("%s: lost producer state from the rest of a segment: %s", partition, error)
    return state


def find_producers_at_once(
    partition: TopicPartition, disk: Disk, directory: str, segments: Sequence[Segment], end_offset: int, most: int
) -> ProducerState:
    """The same in one step."""
    steps = find_producers(partition, disk, directory, segments, end_offset, most)
    while True:
        try:
            next(steps)
        except StopIteration as found:
            state: ProducerState = found.value
            return state


def _newest_snapshot(
    partition: TopicPartition, disk: Disk, directory: str, start_offset: int, end_offset: int
) -> tuple[ProducerState, int]:
    """The newest valid snapshot at or below the log end; later ones describe removed records."""
    for offset in reversed(snapshot_offsets(disk, directory)):
        if offset <= end_offset:
            path = snapshot_path(directory, offset)
            try:
                return ProducerState.from_snapshot(disk.read_file(path) or b""), offset
            except ValueError as error:
                logger.warning("%s: ignored producer snapshot %s: %s", partition, path, error)
    return ProducerState(), start_offset
