"""Opens a partition's directory after a clean stop or a crash, and repairs what a crash left behind.

After a crash the CRC of every batch from the recovery point's segment on is checked. At the first torn, corrupt or
out-of-order batch the log is truncated and later segments are dropped; nothing there was promised, because older
segments are synced first. Earlier segments are whole and never truncated: if one is damaged, its records are served up
to the damage. Gaps between offsets are allowed only where compaction may have left them. A log starts with the segment
that its metadata names. Earlier segments are left over from retention. If that segment is missing, a power failure took
the names of the first segments before anything was synced, and the log restarts. A cleaned segment whose swap was
interrupted is swapped in. Recovery rebuilds whatever it cannot trust, the indexes of aborted transactions
included, and never refuses a torn log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tailrace.model import TopicPartition
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, read_header
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk, DiskFullError
from tailrace.storage.checkpoints import Gaps, read_gaps, write_gaps
from tailrace.storage.leader_epochs import LeaderEpochs
from tailrace.storage.log_config import LogConfig
from tailrace.storage.open_transactions import UNBOUNDED
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.partition_metadata import PartitionMetadata
from tailrace.storage.producer_snapshots import find_producers_at_once, remove_snapshots_beyond
from tailrace.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptSegmentError,
    Segment,
)

logger = logging.getLogger("tailrace.storage")

_CHUNK_BYTES = 4 << 20
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX)


def open_log(
    partition: TopicPartition,
    directory: str,
    config: LogConfig,
    disk: Disk,
    clock: Clock,
    *,
    stopped_cleanly: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    metadata: PartitionMetadata | None = None,
) -> PartitionLog:
    """Open the log in a directory, empty or not, and recover it if the last stop was not clean."""
    _remove_leftovers(disk, directory)
    gaps = read_gaps(disk, directory)
    _finish_swaps(partition, disk, directory, gaps.within_below)
    epochs = LeaderEpochs(disk, directory)
    found = _list_segments(disk, directory)
    # After a clean stop all names are as they were left.
    known_start = None if metadata is None or stopped_cleanly else metadata.first_offset
    first_offset = max(log_start_offset, known_start or 0)
    segments = _lawful(partition, found, known_start, first_offset, recovery_point)
    reindexed_from = UNBOUNDED
    if segments and stopped_cleanly:
        for segment in segments[:-1]:
            if not segment.has_index_files:
                _rebuild_sealed(segment, config)
        _open_trusted(segments[-1], config)
    elif segments:
        segments, reindexed_from = _recover(partition, segments, config, epochs, recovery_point, gaps)
    if segments and segments[-1].end_offset < first_offset:
        segments = []  # everything that survived was removed before the crash; offsets must not be reused
    kept = dict.fromkeys(map(id, segments))
    _drop(disk, directory, [segment for segment in found if id(segment) not in kept])
    if not segments:
        segments = [Segment(disk, directory, first_offset, first_offset, create=True)]
        segments[0].open_indexes()
    end_offset = segments[-1].end_offset
    if gaps.between_up_to > end_offset:
        # It describes what was there, not what will be appended.
        gaps = gaps._replace(between_up_to=end_offset)
        write_gaps(disk.directory(directory), gaps)
    start_offset = min(max(first_offset, segments[0].base_offset), end_offset)
    # Clients still ask for the epochs of archived records.
    epochs.truncate(0 if config.is_archived else start_offset, end_offset)
    if remove_snapshots_beyond(disk, directory, end_offset):
        # If a snapshot reappeared after the next crash, it would describe records that never existed.
        disk.sync_directory(directory)
    producers = find_producers_at_once(
        partition, disk, directory, segments, end_offset, config.max_producers, reindexed_from
    )
    _sync_transaction_indexes(disk, directory, segments, reindexed_from)
    flushed = end_offset if stopped_cleanly else min(max(recovery_point, segments[0].base_offset), end_offset)
    if metadata is not None:
        _correct(metadata, segments[0].base_offset, end_offset, is_trusted=stopped_cleanly)
    return PartitionLog(
        partition,
        directory,
        config,
        disk,
        clock,
        segments,
        epochs,
        producers,
        start_offset,
        flushed,
        gaps,
        metadata,
    )


def _lawful(
    partition: TopicPartition, found: list[Segment], known_start: int | None, first_offset: int, recovery_point: int
) -> list[Segment]:
    """The segments that the log may start with; empty if its start is lost."""
    if known_start is None or not found:
        return found
    # Retention was about to remove these: some may be gone.
    segments = [segment for segment in found[:-1] if segment.end_offset > known_start] + found[-1:]
    # Segments below the recovery point were durable, so only damage can have removed them: lose no more than that.
    if segments[0].base_offset <= max(first_offset, recovery_point):
        return segments
    logger.warning(
        "%s: dropped segment %d and all later ones, the log starts at %d: a power failure took what was before "
        "them, and nothing from there on was promised",
        partition,
        segments[0].base_offset,
        first_offset,
    )
    return []


def _drop(disk: Disk, directory: str, segments: Sequence[Segment]) -> None:
    """Remove segments that are not part of the log, durably, because new ones will use their names."""
    for segment in reversed(segments):
        segment.remove_files()
    if segments:
        disk.sync_directory(directory)


def _correct(metadata: PartitionMetadata, base_offset: int, end_offset: int, *, is_trusted: bool) -> None:
    """Move the log start to the first segment if the metadata is wrong or has no start."""
    first_offset = metadata.first_offset
    if (not is_trusted) if first_offset is None else not base_offset <= first_offset <= end_offset:
        metadata.move_start(base_offset)
        metadata.write_soon()


def _remove_leftovers(disk: Disk, directory: str) -> None:
    for name in disk.list(directory):
        if name.endswith(_LEFTOVER_SUFFIXES):
            disk.remove(f"{directory}/{name}")


def _finish_swaps(partition: TopicPartition, disk: Disk, directory: str, gaps_below: int) -> None:
    """Complete the swaps of cleaned segments that a crash interrupted."""
    names = disk.list(directory)
    swapped = [name for name in names if name.endswith(SWAP_SUFFIX)]
    for name in swapped:
        kind = LOG_SUFFIX + SWAP_SUFFIX
        if not _is_segment(name, kind):
            continue
        base_offset = int(name[: -len(kind)])
        segment = Segment(disk, directory, base_offset, base_offset, suffix=SWAP_SUFFIX)
        end_offset = base_offset + 1
        try:
            for _, header in segment.headers():
                end_offset = min(header.next_offset, gaps_below)
        except CorruptSegmentError as error:
            logger.error("%s: %s; kept the old segments after that position", partition, error)
        # The old segment's indexes must not be used for this one.
        for other in names:
            for suffix in SEGMENT_SUFFIXES:
                if _is_segment(other, suffix) and base_offset <= int(other[: -len(suffix)]) < end_offset:
                    disk.remove(f"{directory}/{other}")
        segment.change_suffix("")
        logger.info("%s: completed the swap of cleaned segment %d", partition, base_offset)
    for name in disk.list(directory):
        if name.endswith(SWAP_SUFFIX):
            disk.remove(f"{directory}/{name}")
    if swapped:
        disk.sync_directory(directory)


def _list_segments(disk: Disk, directory: str) -> list[Segment]:
    names = disk.list(directory)
    bases = [int(name[: -len(LOG_SUFFIX)]) for name in names if _is_segment(name, LOG_SUFFIX)]
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
        for name in names:
            if _is_segment(name, suffix) and int(name[: -len(suffix)]) not in bases:
                disk.remove(f"{directory}/{name}")
    ends = [*bases[1:], *bases[-1:]]
    return [Segment(disk, directory, base, end) for base, end in zip(bases, ends, strict=True)]


def _is_segment(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and name[: -len(suffix)].isdecimal()


def _open_trusted(active: Segment, config: LogConfig) -> None:
    """Find the end of the active segment after a clean stop; rebuild its indexes if they do not fit."""
    last = active.offset_index.last()
    try:
        if not (_offset_index_fits(active) and _time_index_fits(active)):
            raise CorruptSegmentError(active.log.path, last[1] if last else 0)
        for position, header in active.headers(last[1] if last else 0):
            active.end_offset = header.next_offset
            if position == 0:
                active.first_timestamp = header.max_timestamp
        if active.first_timestamp is None and active.size:
            active.first_timestamp = next(active.headers())[1].max_timestamp
    except CorruptSegmentError as error:
        logger.warning("Rebuilding the index of %s: %s", active.log.path, error)
        _rebuild_index(active, config)


def _offset_index_fits(segment: Segment) -> bool:
    """Whether the last entry points to the batch it names; the first batch never has an entry."""
    last = segment.offset_index.last()
    if last is None:
        return True
    if not 0 < last[1] < segment.size:
        return False
    try:
        _, header = next(segment.headers(last[1]))
    except CorruptSegmentError:
        return False
    return header.last_offset == segment.base_offset + last[0]


def _time_index_fits(segment: Segment) -> bool:
    """Whether the last entry has the timestamp of the batch it names."""
    last = segment.time_index.last()
    if last is None:
        return True
    position = segment.position_of(segment.base_offset + last[1]) if last[1] >= 0 else None
    return position is not None and next(segment.headers(position))[1].max_timestamp == last[0]


def _rebuild_index(segment: Segment, config: LogConfig) -> None:
    segment.restart_indexes()
    for position, header in segment.headers():
        segment.index_batch(position, header, config.index_interval_bytes)


def _rebuild_sealed(segment: Segment, config: LogConfig) -> None:
    """Rebuild the indexes of a segment whose records were promised; it is never truncated, even if damaged."""
    end_offset = segment.end_offset
    try:
        _rebuild_index(segment, config)
    except CorruptSegmentError as error:
        logger.error("%s; records from there on are not served", error)
        segment.corrupt_position = error.position
    segment.end_offset = end_offset
    segment.seal()


def _recover(
    partition: TopicPartition,
    segments: list[Segment],
    config: LogConfig,
    epochs: LeaderEpochs,
    recovery_point: int,
    gaps: Gaps,
) -> tuple[list[Segment], int]:
    """Check everything from the recovery point's segment on, truncate at the first bad batch, and return the rest.

    Also returns the offset from which aborted transactions have to be indexed again; UNBOUNDED if nothing ended there.
    """
    kept: list[Segment] = []
    reindexed_from = UNBOUNDED
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        kept.append(segment)
        if following is not None and following.base_offset <= recovery_point:
            if not segment.has_index_files or not _offset_index_fits(segment):
                _rebuild_sealed(segment, config)
            continue
        whole, has_markers = _check_segment(partition, segment, config, epochs, gaps.within_below)
        if has_markers:
            reindexed_from = min(reindexed_from, segment.base_offset)
        if following is None:
            break
        # Without compaction segments follow each other without gaps: a gap means that the older one lost its end.
        if whole and segment.end_offset < following.base_offset <= gaps.between_up_to:
            segment.end_offset = following.base_offset
        if not whole or segment.end_offset != following.base_offset:
            for lost in segments[index + 1 :]:
                logger.warning(
                    "%s: dropped segment %d, which follows a torn one: it was not known to be on disk",
                    partition,
                    lost.base_offset,
                )
            break
    return kept, reindexed_from


def _sync_transaction_indexes(disk: Disk, directory: str, segments: list[Segment], reindexed_from: int) -> None:
    """Make the rebuilt indexes durable at once: the next sync may not include their segments any more."""
    if reindexed_from == UNBOUNDED:
        return
    for segment in segments:
        index = segment.transaction_index
        if segment.base_offset >= reindexed_from and len(index):
            if not index.flush() or index.file is None:
                raise DiskFullError(f"{directory}: no space for the index of aborted transactions")
            index.file.sync()
    disk.sync_directory(directory)


def _check_segment(
    partition: TopicPartition, segment: Segment, config: LogConfig, epochs: LeaderEpochs, gaps_below: int
) -> tuple[bool, bool]:
    """Check one segment's CRCs, rebuild its sparse indexes, and truncate it at the first bad batch.

    Returns whether it is whole, and whether transactions end in it.
    """
    segment.restart_indexes()
    segment.transaction_index.clear()
    has_markers = False
    segment.end_offset = segment.base_offset
    log = segment.log
    size = log.size
    position = 0
    chunk, chunk_at = memoryview(b""), 0
    while position < size:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = memoryview(log.read(position, _CHUNK_BYTES)), position
        header = _sound_header(chunk, position - chunk_at, segment.end_offset, size - position, gaps_below)
        if header is not None and position + header.size > chunk_at + len(chunk):
            chunk, chunk_at = memoryview(log.read(position, max(header.size, _CHUNK_BYTES))), position
        if header is None or not has_valid_crc(chunk, header, position - chunk_at):
            logger.warning(
                "%s: truncated %s at position %d (offset %d): dropped %d bytes of an unfinished write",
                partition,
                log.path,
                position,
                segment.end_offset,
                size - position,
            )
            segment.truncate(position, segment.end_offset)
            # If it reappeared after the next crash, it might pass for valid behind other records.
            log.sync()
            return False, has_markers
        has_markers = has_markers or (header.is_control and header.producer_id >= 0)
        segment.index_batch(position, header, config.index_interval_bytes)
        epochs.observe(header.leader_epoch, header.base_offset)
        position += header.size
    segment.unchecked_end = 0
    return True, has_markers


def _sound_header(chunk: memoryview, at: int, next_offset: int, remaining: int, gaps_below: int) -> BatchHeader | None:
    """The header at a position if it is valid: whole, magic 2, within the file, and next in offsets."""
    if at + HEADER_BYTES > len(chunk):
        return None
    header = read_header(chunk, at)
    if header.magic != MAGIC or not HEADER_BYTES <= header.size <= remaining:
        return None
    # The CRC does not cover the offset: only the neighbouring batches confirm it.
    if header.base_offset < next_offset or (header.base_offset > next_offset and header.base_offset >= gaps_below):
        return None
    if header.last_offset_delta < 0:
        return None
    return header
