"""Opening a partition's directory: what a clean stop left, or what a crash left, made whole again.

After a crash every batch from the recovery point's segment on is checked by its CRC; at the first that is torn,
corrupt or out of order the log is cut, and segments beyond are dropped: they were never promised, because older
segments are synced first. Segments before it are whole, and never cut: damage in them ends what is served of them.
Gaps between offsets are sound where compaction says that it may have left some, and only there. A log starts with the
segment that its metadata names: earlier ones are what is left of those that retention took out, and one without it has
lost its start with the names of its first segments, before anything was synced, and begins anew. A cleaned segment
that a crash kept from its place is put there. Recovery rebuilds whatever it cannot trust and never refuses a torn log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tailrace.model import TopicPartition
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, read_header
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk
from tailrace.storage.checkpoints import Gaps, read_gaps, write_gaps
from tailrace.storage.leader_epochs import LeaderEpochs
from tailrace.storage.log_config import LogConfig
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
    """Open the log in a directory, empty or not, recovering it where the last stop was not clean."""
    _remove_leftovers(disk, directory)
    gaps = read_gaps(disk, directory)
    _finish_swaps(partition, disk, directory, gaps.within_below)
    epochs = LeaderEpochs(disk, directory)
    found = _list_segments(disk, directory)
    # After a clean stop every name is as it was left.
    known_start = None if metadata is None or stopped_cleanly else metadata.first_offset
    first_offset = max(log_start_offset, known_start or 0)
    segments = _lawful(partition, found, known_start, first_offset, recovery_point)
    if segments and stopped_cleanly:
        for segment in segments[:-1]:
            if not segment.has_index_files:
                _rebuild_sealed(segment, config)
        _open_trusted(segments[-1], config)
    elif segments:
        segments = _recover(partition, segments, config, epochs, recovery_point, gaps)
    if segments and segments[-1].end_offset < first_offset:
        segments = []  # all that survived was given up before the crash; offsets must not be used a second time
    kept = dict.fromkeys(map(id, segments))
    _drop(disk, directory, [segment for segment in found if id(segment) not in kept])
    if not segments:
        segments = [Segment(disk, directory, first_offset, first_offset, create=True)]
        segments[0].open_indexes()
    end_offset = segments[-1].end_offset
    if gaps.between_up_to > end_offset:
        # It goes for what was there, and not for what will be.
        gaps = gaps._replace(between_up_to=end_offset)
        write_gaps(disk.directory(directory), gaps)
    start_offset = min(max(first_offset, segments[0].base_offset), end_offset)
    # Epochs of what is in the archive are still asked for.
    epochs.truncate(0 if config.is_archived else start_offset, end_offset)
    if remove_snapshots_beyond(disk, directory, end_offset):
        # A snapshot that came back after the next crash would describe records that never were.
        disk.sync_directory(directory)
    producers = find_producers_at_once(partition, disk, directory, segments, end_offset, config.max_producers)
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
    """The segments from the one on with which the log may start; none where its start is lost."""
    if known_start is None or not found:
        return found
    # Retention was about to take these out: some may be gone.
    segments = [segment for segment in found[:-1] if segment.end_offset > known_start] + found[-1:]
    # What the recovery point says was durable can only have gone otherwise, and is no reason to lose more.
    if segments[0].base_offset <= max(first_offset, recovery_point):
        return segments
    logger.warning(
        "%s: segment %d and all after it are dropped, the log starts at %d: a power cut took what was between, and "
        "nothing was promised from there on",
        partition,
        segments[0].base_offset,
        first_offset,
    )
    return []


def _drop(disk: Disk, directory: str, segments: Sequence[Segment]) -> None:
    """Remove segments that are not the log's, for good: others will have their names."""
    for segment in reversed(segments):
        segment.remove_files()
    if segments:
        disk.sync_directory(directory)


def _correct(metadata: PartitionMetadata, base_offset: int, end_offset: int, *, is_trusted: bool) -> None:
    """Let the log start with the first segment that there is, where its metadata cannot be right or says nothing."""
    first_offset = metadata.first_offset
    if (not is_trusted) if first_offset is None else not base_offset <= first_offset <= end_offset:
        metadata.move_start(base_offset)
        metadata.write_soon()


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
    gaps: Gaps,
) -> list[Segment]:
    """Check everything from the recovery point's segment on; cut at the first batch that is not sound. What is kept."""
    kept: list[Segment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        kept.append(segment)
        if following is not None and following.base_offset <= recovery_point:
            if not segment.has_index_files or not _offset_index_fits(segment):
                _rebuild_sealed(segment, config)
            continue
        whole = _check_segment(partition, segment, config, epochs, gaps.within_below)
        if following is None:
            break
        # But for compaction segments follow each other without a gap: one means that the older lost its end.
        if whole and segment.end_offset < following.base_offset <= gaps.between_up_to:
            segment.end_offset = following.base_offset
        if not whole or segment.end_offset != following.base_offset:
            for lost in segments[index + 1 :]:
                logger.warning(
                    "%s: segment %d is dropped, it follows a torn one and was never promised",
                    partition,
                    lost.base_offset,
                )
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
            # What comes back in the next crash might pass for sound behind other records.
            log.sync()
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
