"""Opening a partition's directory: what a clean stop left, or what a crash left, made whole again.

After a crash every batch from the recovery point's segment on is checked by its CRC; at the first that is torn,
corrupt or out of order the log is cut, and segments beyond are dropped: they were never promised, because older
segments are synced first. Segments before it are whole, and never cut: damage in them ends what is served of them.
Gaps between offsets are sound where compaction says that it may have left some, and only there. A cleaned segment
that a crash kept from its place is put there. Recovery rebuilds whatever it cannot trust and never refuses a torn log.
"""

from __future__ import annotations

import logging

from tailrace.model import TopicPartition
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, read_header
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk
from tailrace.storage.checkpoints import read_gaps_below
from tailrace.storage.leader_epochs import LeaderEpochs
from tailrace.storage.log_config import LogConfig
from tailrace.storage.partition_log import PartitionLog
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
_ANYWHERE = 2**63 - 1


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
) -> PartitionLog:
    """Open the log in a directory, empty or not, recovering it where the last stop was not clean."""
    _remove_leftovers(disk, directory)
    found_gaps_below = read_gaps_below(disk, directory)
    gaps_below = _ANYWHERE if found_gaps_below is None else found_gaps_below
    _finish_swaps(partition, disk, directory, gaps_below)
    epochs = LeaderEpochs(disk, directory)
    segments = _list_segments(disk, directory, log_start_offset)
    if stopped_cleanly:
        for segment in segments[:-1]:
            if not segment.has_index_files:
                _rebuild_sealed(segment, config)
        _open_trusted(segments[-1], config)
    else:
        segments = _recover(partition, segments, config, epochs, recovery_point, gaps_below)
    if segments[-1].end_offset < log_start_offset:
        # Everything that survived was given up before the crash; offsets must not be used a second time.
        for segment in segments:
            segment.remove_files()
        segments = [Segment(disk, directory, log_start_offset, log_start_offset, create=True)]
    end_offset = segments[-1].end_offset
    start_offset = min(max(log_start_offset, segments[0].base_offset), end_offset)
    # Epochs of what is in the archive are still asked for.
    epochs.truncate(0 if config.is_archived else start_offset, end_offset)
    if remove_snapshots_beyond(disk, directory, end_offset):
        # A snapshot that came back after the next crash would describe records that never were.
        disk.sync_directory(directory)
    producers = find_producers_at_once(partition, disk, directory, segments, end_offset, config.max_producers)
    flushed = end_offset if stopped_cleanly else min(max(recovery_point, segments[0].base_offset), end_offset)
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
        gaps_below,
    )


def _remove_leftovers(disk: Disk, directory: str) -> None:
    for name in disk.list(directory):
        if name.endswith(_LEFTOVER_SUFFIXES):
            disk.remove(f"{directory}/{name}")


def _finish_swaps(partition: TopicPartition, disk: Disk, directory: str, gaps_below: int) -> None:
    """Put cleaned segments in the place of those they were made of, where a crash came between."""
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
            logger.error("%s: %s; what follows in its place is kept", partition, error)
        # Indexes of the former segment must not be taken for its own.
        for other in names:
            for suffix in SEGMENT_SUFFIXES:
                if _is_segment(other, suffix) and base_offset <= int(other[: -len(suffix)]) < end_offset:
                    disk.remove(f"{directory}/{other}")
        segment.change_suffix("")
        logger.info("%s: the cleaned segment %d is in its place", partition, base_offset)
    for name in disk.list(directory):
        if name.endswith(SWAP_SUFFIX):
            disk.remove(f"{directory}/{name}")
    if swapped:
        disk.sync_directory(directory)


def _list_segments(disk: Disk, directory: str, first_offset: int) -> list[Segment]:
    names = disk.list(directory)
    bases = [int(name[: -len(LOG_SUFFIX)]) for name in names if _is_segment(name, LOG_SUFFIX)]
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
        for name in names:
            if _is_segment(name, suffix) and int(name[: -len(suffix)]) not in bases:
                disk.remove(f"{directory}/{name}")
    if not bases:
        return [Segment(disk, directory, first_offset, first_offset, create=True)]
    ends = [*bases[1:], bases[-1]]
    return [Segment(disk, directory, base, end) for base, end in zip(bases, ends, strict=True)]


def _is_segment(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and name[: -len(suffix)].isdecimal()


def _open_trusted(active: Segment, config: LogConfig) -> None:
    """Find the end of the newest segment after a clean stop; rebuild its indexes if they are not sound."""
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
        logger.warning("%s: its index is rebuilt: %s", active.log.path, error)
        _rebuild_index(active, config)


def _offset_index_fits(segment: Segment) -> bool:
    """Whether the last entry points to the batch it names; no entry ever points to the first batch."""
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
    """Whether the last entry's timestamp is that of the batch it names."""
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
    """Rebuild the indexes of a segment whose records were promised: it is not cut, wherever it is damaged."""
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
    gaps_below: int,
) -> list[Segment]:
    """Check everything from the recovery point's segment on; cut at the first batch that is not sound."""
    kept: list[Segment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        kept.append(segment)
        if following is not None and following.base_offset <= recovery_point:
            if not segment.has_index_files or not _offset_index_fits(segment):
                _rebuild_sealed(segment, config)
            continue
        whole = _check_segment(partition, segment, config, epochs, gaps_below)
        if following is None:
            break
        # But for compaction segments follow each other without a gap: one means that the older lost its end.
        if whole and segment.end_offset < following.base_offset <= gaps_below:
            segment.end_offset = following.base_offset
        if not whole or segment.end_offset != following.base_offset:
            for lost in segments[index + 1 :]:
                logger.warning(
                    "%s: segment %d is dropped, it follows a torn one and was never promised",
                    partition,
                    lost.base_offset,
                )
                lost.remove_files()
            break
    return kept


def _check_segment(
    partition: TopicPartition, segment: Segment, config: LogConfig, epochs: LeaderEpochs, gaps_below: int
) -> bool:
    """Scan one segment by CRC, rebuild its indexes, cut it at the first unsound batch; False where it was cut."""
    segment.restart_indexes()
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
                "%s: %s cut at position %d (offset %d), %d bytes of an unfinished write are dropped",
                partition,
                log.path,
                position,
                segment.end_offset,
                size - position,
            )
            segment.truncate(position, segment.end_offset)
            return False
        segment.index_batch(position, header, config.index_interval_bytes)
        epochs.observe(header.leader_epoch, header.base_offset)
        position += header.size
    segment.unchecked_end = 0
    return True


def _sound_header(chunk: memoryview, at: int, next_offset: int, remaining: int, gaps_below: int) -> BatchHeader | None:
    """The header there, if it can be one: whole, magic 2, within the file, and next in offsets."""
    if at + HEADER_BYTES > len(chunk):
        return None
    header = read_header(chunk, at)
    if header.magic != MAGIC or not HEADER_BYTES <= header.size <= remaining:
        return None
    # The CRC does not cover the offset: only its neighbours tell that it is right.
    if header.base_offset < next_offset or (header.base_offset > next_offset and header.base_offset >= gaps_below):
        return None
    if header.last_offset_delta < 0:
        return None
    return header
