"""Rebuilds producer state from disk: from the newest valid snapshot of a log, and all headers and markers after it.

This is done at a start and when a log is truncated. After a crash, the same replay rebuilds the indexes of aborted
transactions, whose entries depend on what was open before. A replay may cover a whole segment, so it runs in steps
between which other tasks may run. A truncation removes the snapshots beyond it, and makes that durable before anything
is written in their place.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence

from tailrace.model import TopicPartition
from tailrace.records.batch import BatchHeader
from tailrace.runtime.disk import Disk
from tailrace.storage.open_transactions import UNBOUNDED
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
    partition: TopicPartition,
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    most: int,
    reindexed_from: int = UNBOUNDED,
) -> Generator[None, None, ProducerState]:
    """The producers of a log that ends at an offset, at most `most`, found in steps.

    Aborted transactions whose markers are at `reindexed_from` or later enter the empty indexes of their segments.
    """
    newest = min(end_offset, reindexed_from)
    state, covered = _newest_snapshot(partition, disk, directory, segments[0].base_offset, newest)
    replayed = 0
    for segment in segments:
        if segment.end_offset <= covered or segment.base_offset >= end_offset:
            continue
        try:
            start = segment.position_of(covered) if covered > segment.base_offset else 0
            for position, header in segment.headers(start or 0):
                if header.next_offset > end_offset:
                    break
                if header.base_offset >= covered and header.producer_id >= 0:
                    if header.is_control:
                        _replay_marker(segment, position, header, state, reindexed_from)
                    elif state.update(header, header.base_offset, header.max_timestamp):
                        state.bound(most)
                replayed += 1
                if replayed % _STEP_HEADERS == 0:
                    yield
        except CorruptSegmentError as error:
            logger.error("%s: lost producer state from the rest of a segment: %s", partition, error)
    return state


def _replay_marker(
    segment: Segment, position: int, header: BatchHeader, state: ProducerState, reindexed_from: int
) -> None:
    marker = segment.marker_at(position, header)
    if marker is not None:
        aborted = state.end_transaction(marker, header.base_offset, header.max_timestamp)
        if aborted is not None and header.base_offset >= reindexed_from:
            segment.transaction_index.add(aborted)
    elif header.record_count == 0:
        state.marker_is_gone(header)


def find_producers_at_once(
    partition: TopicPartition,
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    most: int,
    reindexed_from: int = UNBOUNDED,
) -> ProducerState:
    """The same in one step."""
    steps = find_producers(partition, disk, directory, segments, end_offset, most, reindexed_from)
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
                return ProducerState.from_snapshot(disk.read_file(path) or b"", offset), offset
            except ValueError as error:
                logger.warning("%s: ignored producer snapshot %s: %s", partition, path, error)
    return ProducerState(), start_offset
