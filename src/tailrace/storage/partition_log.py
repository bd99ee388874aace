"""The log of one partition: its segments, and appends, reads and removals on them.

Invariants: offsets only grow, and a batch is in the log as a whole or not at all. Nothing is acknowledged above
`promised_offset`, the offset up to which the topic's flush policy is met. Older segments are synced before newer ones,
so a power failure leaves a prefix. Compaction leaves gaps, but never moves or reuses an offset. The log knows neither
requests nor replicas.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from tailrace.records.batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, BatchHeader, assign_offset, stamp_append_time
from tailrace.records.markers import Marker, build_marker
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk, DiskFullError, FileRange, PassingStorageError
from tailrace.runtime.long_work import LongWork
from tailrace.storage.checkpoints import COMPACTED, NO_GAPS, Gaps, write_gaps
from tailrace.storage.leader_epochs import LeaderEpochs
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_transactions import LogTransactions
from tailrace.storage.partition_metadata import PartitionMetadata
from tailrace.storage.producer_snapshots import (
    find_producers,
    remove_snapshots_beyond,
    snapshot_offsets,
    snapshot_path,
)
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.replicated_batches import checked_batches, gaps_end
from tailrace.storage.retention import Retention
from tailrace.storage.segment import MAX_RELATIVE_OFFSET, Segment
from tailrace.storage.segment_list import SegmentList
from tailrace.storage.timestamp_search import TimestampedOffset, TimestampSearch

logger = logging.getLogger("tailrace.storage")

#: The last bytes written up to this size are assumed to be in the page cache.
_WARM_BYTES = 8 << 20
_SNAPSHOTS_KEPT = 2


class Appended(NamedTuple):
    """The place of a batch in the log, and the time stamped by the broker (or -1)."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    is_duplicate: bool = False


class LogPast(NamedTuple):
    """What is still needed of records before the start of a log."""

    leader_epochs: Sequence[tuple[int, int]]
    producers: ProducerState


class PartitionLog:
    """An append-only, persistent sequence of record batches."""

    def __init__(
        self,
        partition: TopicPartition,
        directory: str,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        segments: list[Segment],
        leader_epochs: LeaderEpochs,
        producers: ProducerState,
        log_start_offset: int,
        flushed_offset: int,
        gaps: Gaps = NO_GAPS,
        metadata: PartitionMetadata | None = None,
    ) -> None:
        self.partition = partition
        self.directory = directory
        #: A handle for threads, because the directory may be renamed while they work.
        self.opened_directory = disk.directory(directory)
        self.config = config
        self.leader_epochs = leader_epochs
        self.producers = producers
        self.start_offset = log_start_offset
        #: The log starts at least here after a crash. Records between this and `start_offset` may reappear.
        self.saved_start_offset = log_start_offset
        #: Everything below survives a power cut.
        self.flushed_offset = flushed_offset
        #: The recovery point on disk: recovery after a crash starts here.
        self.saved_flushed_offset = flushed_offset
        self.end_offset = segments[-1].end_offset
        #: Where compaction may have left gaps; there are none elsewhere.
        self.gaps = gaps
        #: None for a log that is never reopened, and that loses nothing in a power failure.
        self.metadata = metadata
        #: True while compaction works on the log, which then alone removes segments.
        self.is_being_cleaned = False
        #: True from the decision to truncate the log until that is durable: no appends and no compaction.
        self.is_being_cut = False
        #: Acknowledgements may be given up to this offset, because the flush policy is met.
        self.promised_offset = flushed_offset
        self.unsynced_bytes = 0
        self.dirty_since: float | None = None
        #: Called whenever the log needs a sync before it can promise more, or has much unsynced.
        self.on_dirty: Callable[[PartitionLog], None] = _ignore
        self._disk = disk
        self._clock = clock
        self.segments = SegmentList(segments)
        self.retention = Retention(self, clock)
        self.transactions = LogTransactions(self)
        self._names_unsynced = True
        # New gaps are written before anything depends on them. Those of a truncation wait for its sync, since they
        # claim that everything before them is durable.
        self._gaps_unsynced = self._gaps_unwritten = False
        self._has_too_many_producers = False
        self.segments.active.grow_on()
        self.synced(flushed_offset)

    # --- appending

    def append(self, data: memoryview | bytearray, header: BatchHeader, leader_epoch: int) -> Appended:
        """Assign offsets to one checked batch and write it; for a duplicate, return its first offsets."""
        config = self.config
        size = len(data)
        if size > config.max_message_bytes and not header.is_control:
            self.require_size(size)
        marker = None
        if header.producer_id >= 0:
            # What a coordinator writes on behalf of a producer has no sequence.
            if header.base_sequence < 0:
                marker = self.transactions.checked(data, header)
            elif (earlier := self.producers.check(header)) is not None:
                append_time = earlier.timestamp if config.log_append_time else NO_TIMESTAMP
                return Appended(earlier.base_offset, earlier.last_offset, append_time, is_duplicate=True)
        now_ms = self._clock.wall_ms()
        if config.log_append_time:
            max_timestamp = append_time = now_ms
            stamp_append_time(data, header.attributes, now_ms)
        else:
            max_timestamp, append_time = header.max_timestamp, NO_TIMESTAMP
            if max_timestamp - now_ms > config.timestamp_after_max_ms or (
                now_ms - header.base_timestamp > config.timestamp_before_max_ms and header.base_timestamp >= 0
            ):
                raise KafkaError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"Timestamps {header.base_timestamp} to {max_timestamp} are out of range. The timestamp should be "
                    f"within [{now_ms - config.timestamp_before_max_ms}, {now_ms + config.timestamp_after_max_ms}]",
                )
        base_offset = self.end_offset
        last_offset = base_offset + header.last_offset_delta
        assign_offset(data, base_offset, leader_epoch)
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        segment = self.segments.active
        if base_offset > segment.base_offset and self._must_roll(segment, size, last_offset, max_timestamp):
            segment = self._roll()
        segment.append(data, base_offset, last_offset, max_timestamp, config.index_interval_bytes)
        if segment.first_timestamp is None:
            segment.first_timestamp = max_timestamp
            segment.first_append_ms = now_ms
        # By the broker's clock, so that a producer of old records does not count as idle.
        if marker is not None:
            self.transactions.end(marker, base_offset, now_ms)
        elif header.producer_id >= 0 and self.producers.update(header, base_offset, now_ms):
            self.bound_producers()
        self.end_offset = last_offset + 1
        self._account(size)
        return Appended(base_offset, last_offset, append_time)

    def new_marker(self, marker: Marker) -> bytearray:
        """The batch of a marker that is about to be appended; refuses one that is fenced."""
        self.producers.check_marker(marker)
        return build_marker(
            marker.producer_id,
            marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=self._clock.wall_ms(),
        )

    def bound_producers(self) -> None:
        """Drop the longest idle producers if there are too many; logged once."""
        most = self.config.max_producers
        if self.producers.bound(most) and not self._has_too_many_producers:
            self._has_too_many_producers = True
            logger.warning(
                "%s has more than %d idempotent producers: dropped the state of those idle for longest; raise "
                "tailrace.producer.ids.per.partition if more producers are active at once",
                self.partition,
                most,
            )

    def require_size(self, size: int) -> None:
        """Refuse a batch larger than the topic's limit."""
        if size > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The record batch size in the append to {self.partition} is {size} bytes which exceeds the maximum "
                f"configured value of {self.config.max_message_bytes}.",
            )

    def time_bounds(self) -> tuple[int, int] | None:
        """The allowed range of a producer's record times; None if the broker stamps records itself."""
        config = self.config
        if config.log_append_time:
            return None
        now_ms = self._clock.wall_ms()
        return now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms

    def _account(self, size: int) -> None:
        """Move the promise to the log end, unless the flush policy requires a sync first."""
        self.unsynced_bytes += size
        if self.dirty_since is None:
            self.dirty_since = self._clock.monotonic()
        if self.end_offset - self.flushed_offset < self.config.flush_messages:
            self.promised_offset = self.end_offset
        self.on_dirty(self)

    @property
    def needs_flush(self) -> bool:
        """Whether a promise needs a sync first."""
        return self.promised_offset < self.end_offset

    def _must_roll(self, segment: Segment, size: int, last_offset: int, max_timestamp: int) -> bool:
        config = self.config
        if segment.size + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        first = segment.first_timestamp
        return (first is not None and max_timestamp - first > config.roll_ms) or (
            segment.index_bytes >= config.segment_index_bytes
        )

    def _roll(self, base_offset: int | None = None) -> Segment:
        """Start a new segment at the log end, or at another offset after a gap.

        The start of a segment tells recovery where the previous one ends if it is whole.
        """
        # Seal the old one first: if that fails after a new file exists, the next start would cut the log off there.
        self.segments.active.seal()
        base_offset = self.end_offset if base_offset is None else base_offset
        segment = Segment(self._disk, self.directory, base_offset, base_offset, create=True)
        self.segments.active.end_offset = base_offset
        self.segments.add(segment)
        self._names_unsynced = True
        try:
            self.write_producer_snapshot()
        except PassingStorageError as error:
            logger.warning("%s: no producer snapshot written at %d: %s", self.partition, self.end_offset, error)
        return segment

    def roll_when_old(self) -> None:
        """Roll the active segment when it is old enough, so that its records can be compacted."""
        segment = self.segments.active
        if self.end_offset == segment.base_offset or self.is_being_cut:
            return
        now_ms = self._clock.wall_ms()
        if segment.first_append_ms is None:
            segment.first_append_ms = now_ms
        elif now_ms - segment.first_append_ms > self.config.roll_ms:
            try:
                self._roll()
            except PassingStorageError as error:
                logger.warning("%s: cannot roll the active segment now, will retry: %s", self.partition, error)

    # --- following a leader

    def append_replicated(self, data: memoryview, committed_offset: int) -> int:
        """Write the leader's whole batches up to a partial one, and return how many bytes they have.

        Gaps are accepted where the leader's compaction may have left them: below its committed offset.
        """
        batches = checked_batches(self.partition, data, self.end_offset, self.leader_epochs.latest, committed_offset)
        if not batches:
            return 0
        first = batches[0][1]
        if first.base_offset < self.end_offset:
            self._begin_within(first)
        if (gap_end := gaps_end(batches, self.end_offset)) >= self.gaps.within_below:
            self.allow_gaps(self.gaps._replace(within_below=max(gap_end + 1, committed_offset)))
        now_ms = self._clock.wall_ms()
        run: list[tuple[int, BatchHeader]] = []
        run_bytes = total = 0
        for position, header in batches:
            segment, size = self.segments.active, header.size
            # An empty segment accepts any batch, unless a gap puts its offset out of reach.
            may_roll = run or segment.size or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            if may_roll and self._must_roll(segment, run_bytes + size, header.last_offset, header.max_timestamp):
                if run:
                    self._append_run(data, run, now_ms)
                if header.last_offset - self.end_offset > MAX_RELATIVE_OFFSET:
                    self._roll_far_away(header.base_offset)
                else:
                    self._roll()
                run, run_bytes = [], 0
            run.append((position, header))
            run_bytes += size
            total += size
        self._append_run(data, run, now_ms)
        self.producers.transactions.first_unstable(committed_offset)  # forgets what is committed
        return total

    def _append_run(self, data: memoryview, batches: Sequence[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write batches to the active segment, and apply their headers."""
        segment = self.segments.active
        start, last = batches[0][0], batches[-1]
        end = last[0] + last[1].size
        segment.append_run(data[start:end], batches, start, self.config.index_interval_bytes)
        if segment.first_append_ms is None:
            segment.first_append_ms = now_ms
        epochs = self.leader_epochs
        for position, header in batches:
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                is_stamped = header.attributes & LOG_APPEND_TIME_BIT
                timestamp = header.max_timestamp if is_stamped else now_ms
                if header.attributes & CONTROL_BIT:
                    self.transactions.end_replicated(data, position, header, timestamp)
                elif self.producers.update(header, header.base_offset, timestamp):
                    self.bound_producers()
        self.end_offset = last[1].next_offset
        self._account(end - start)

    def _begin_within(self, header: BatchHeader) -> None:
        """Let a new log begin with a batch that starts below it, because the leader's log starts inside that batch.

        Any other batch that is not wholly beyond the log end is refused.
        """
        if self.segments.count > 1 or self.segments.active.size or header.next_offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Batch {header.base_offset} to {header.last_offset} does not follow the end of {self.partition} at "
                f"{self.end_offset}",
            )
        end_offset, starts = self.end_offset, (self.start_offset, self.saved_start_offset)
        # The metadata stays true: the log starts at an offset that this segment holds.
        for segment in self._restart_at(header.base_offset):
            segment.remove_files()
        # If a full disk refuses the batch, the log is as empty as before and ends where it did.
        self.start_offset, self.saved_start_offset = starts
        self.end_offset = self.promised_offset = self.segments.active.end_offset = end_offset
        if self._gaps_unwritten:
            self.allow_gaps(self.gaps)  # at once, because nothing before it has to be durable
            self._gaps_unwritten = False

    def allow_gaps(self, gaps: Gaps, *, sync: bool = False) -> None:
        """Allow gaps in the log, before recovery could find any. Blocks if `sync`.

        Do not call it in a thread, which might overwrite newer gaps with older ones.
        """
        write_gaps(self.opened_directory, gaps, sync=sync)
        self.gaps = gaps
        self._gaps_unsynced = not sync

    def _roll_far_away(self, base_offset: int) -> None:
        """Start a new segment after a gap of 2^31 offsets or more, which no index can express.

        No segment ends where this one starts, so everything before it must be durable. This blocks, but is very rare.
        """
        for segment in self._unsynced_segments:
            segment.log.sync()
        self.opened_directory.sync()
        self.allow_gaps(self.gaps._replace(between_up_to=base_offset), sync=True)
        self._roll(base_offset)

    def find_producers(self, end_offset: int) -> Generator[None, None, ProducerState]:
        """The producers as of an earlier log end, read from disk in steps."""
        most = self.config.max_producers
        return find_producers(self.partition, self._disk, self.directory, list(self.segments), end_offset, most)

    def truncate(self, offset: int, producers: ProducerState) -> list[Segment]:
        """Remove everything from an offset on, given the producers of the rest; returns the segments that left the log.

        The batch with this offset is removed as a whole. Until the next sync a crash may bring the removed records
        back, but never some of them behind others, if the recovery point on disk is not beyond the offset.
        """
        if offset >= self.end_offset:
            return []
        if offset < self.segments.bases[0]:
            return self.restart_at(offset)
        index = self.segments.index_of(offset)
        kept = self.segments[index]
        position = kept.position_of(offset)
        if position is not None:
            _, header = next(kept.headers(position))
            # Inside a gap, the log ends at the requested offset.
            offset = min(offset, header.base_offset)
        kept.open_indexes()  # may fail on a full disk, so it comes before any change
        removed = list(self.segments.newer(index + 1))
        self._take_out(removed, offset)
        self.segments.end_with(index)
        if position is None:
            kept.end_offset = offset
        else:
            kept.truncate(position, offset)
        kept.grow_on()
        self.transactions.segments_changed()
        self._was_cut(offset, producers)
        metadata = self.metadata
        if metadata is not None and metadata.first_offset is not None and metadata.first_offset > offset:
            metadata.move_start(self.segments.bases[0])  # retention must look again
        return removed

    def restart_at(self, offset: int, past: LogPast | None = None) -> list[Segment]:
        """Become an empty log that starts at an offset, with `past`; returns the segments that left the log.

        Nothing may be appended until the next sync. A crash before leaves the old log, or a prefix of it, or nothing.
        """
        removed = self._restart_at(offset, past)
        if self.metadata is not None:
            self.metadata.move_start(offset)
        return removed

    def _restart_at(self, offset: int, past: LogPast | None = None) -> list[Segment]:
        segment = next((segment for segment in self.segments if segment.base_offset == offset), None)
        if segment is None:
            segment = Segment(self._disk, self.directory, offset, offset, create=True)
        else:
            segment.open_indexes()
        removed = [other for other in self.segments if other is not segment]
        self._take_out(removed, 0)
        segment.truncate(0, offset)
        segment.grow_on()
        self.segments.become(segment)
        self.transactions.segments_changed()
        self.start_offset = self.saved_start_offset = offset
        # Nothing promised is left, and no epoch has records here.
        self.flushed_offset = self.promised_offset = offset
        self.leader_epochs.cut(0)
        remove_snapshots_beyond(self._disk, self.directory, NO_OFFSET)
        if past is None:
            self._was_cut(offset, ProducerState())
            return removed
        self.leader_epochs.adopt(past.leader_epochs)
        self._was_cut(offset, past.producers)
        try:
            # No record of this log has these producers, so only a snapshot preserves them.
            self.write_producer_snapshot()
        except PassingStorageError as error:
            logger.warning("%s: no producer snapshot written at %d: %s", self.partition, offset, error)
        return removed

    def _take_out(self, segments: Sequence[Segment], offset: int) -> None:
        """Rename the files of segments out of the log, newest first, so that a crash leaves no gap."""
        if segments and self.gaps.between_up_to > offset:
            # Recovery must notice that these are missing, whichever reappear. This blocks, but only if a log drops
            # compacted segments, whose records are all committed.
            self.allow_gaps(self.gaps._replace(between_up_to=offset), sync=True)
        for segment in reversed(segments):
            segment.rename_for_deletion()

    def _was_cut(self, offset: int, producers: ProducerState) -> None:
        """Limit everything known of the log to its new end."""
        self.end_offset = offset
        self.start_offset = min(self.start_offset, offset)
        self.saved_start_offset = min(self.saved_start_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self.promised_offset = min(self.promised_offset, offset)
        self.leader_epochs.cut(offset)
        self.producers = producers
        remove_snapshots_beyond(self._disk, self.directory, offset)
        if self.gaps.within_below > offset:
            # The log may end in a gap, which the next append then follows. The sync makes everything before durable.
            self.gaps = Gaps(offset + 1, offset)
            self._gaps_unwritten = True
        self._names_unsynced = True
        if self.dirty_since is None:
            self.dirty_since = self._clock.monotonic()

    # --- durability

    @property
    def _unsynced_segments(self) -> Sequence[Segment]:
        return self.segments.from_offset(self.flushed_offset)

    def sync_work(self, *, with_identity: bool = False) -> tuple[int, Callable[[], None]]:
        """What a sync would make durable now: the offset it reaches, and the blocking call that does it."""
        # Use handles, not names: the event loop may rename the files and the directory in between.
        is_full = not self.transactions.write_rest()
        files = [file for segment in self._unsynced_segments for file in segment.files_to_sync()]
        gaps_file = self._disk.open(f"{self.directory}/{COMPACTED}") if self._gaps_unsynced else None
        directory = self.opened_directory
        has_new_names, self._names_unsynced = self._names_unsynced, False
        gaps = self.gaps if self._gaps_unwritten else None
        self._gaps_unsynced = False
        epochs = self.leader_epochs.sync_work()
        metadata = self.metadata
        has_metadata = metadata is not None and (with_identity or not metadata.is_durable)

        def work() -> None:
            if is_full:
                # Recovery trusts the index of a segment that it does not check.
                raise DiskFullError(f"{self.directory}: no space for the index of aborted transactions")
            for file in files:
                file.sync()
            epochs()
            if gaps_file is not None:
                gaps_file.sync()
            if has_new_names or gaps_file is not None:
                directory.sync()
            # Both claim that earlier data is durable, so they are written after it.
            if gaps is not None:
                write_gaps(directory, gaps)
                self._gaps_unwritten = False
            if metadata is not None and has_metadata:
                metadata.write(sync=True)

        self.unsynced_bytes = 0
        self.dirty_since = None
        return self.end_offset, work

    def synced(self, offset: int) -> None:
        """A sync up to an offset has succeeded."""
        self.flushed_offset = max(self.flushed_offset, min(offset, self.end_offset))
        if self.end_offset - self.flushed_offset < self.config.flush_messages:
            self.promised_offset = self.end_offset
        else:
            self.promised_offset = max(self.promised_offset, self.flushed_offset)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply a new configuration; what was promised under the old one stays promised."""
        self.config = config
        self.synced(self.flushed_offset)

    @property
    def is_durable(self) -> bool:
        """Whether there is nothing to sync."""
        has_unsynced = self._names_unsynced or self._gaps_unsynced or self.has_files_to_write
        return self.flushed_offset == self.end_offset and not has_unsynced

    @property
    def has_files_to_write(self) -> bool:
        """Whether a sync has to write files before it syncs them."""
        metadata = self.metadata
        has_metadata = metadata is not None and not metadata.is_durable
        has_transactions = self.transactions.has_unwritten
        return self._gaps_unwritten or has_metadata or has_transactions or not self.leader_epochs.is_durable

    def names_changed(self) -> None:
        """A file was created, so the next sync has to make its name durable."""
        self._names_unsynced = True

    def sync_failed(self) -> None:
        """A sync failed: the next one has to repeat all of it."""
        self._names_unsynced = True
        self._gaps_unsynced = self._gaps_unsynced or self._disk.exists(f"{self.directory}/{COMPACTED}")
        self.leader_epochs.sync_failed()
        if self.dirty_since is None:
            self.dirty_since = self._clock.monotonic()

    def write_producer_snapshot(self) -> None:
        """Save the producer state as of the log end, and remove snapshots no longer needed."""
        path = snapshot_path(self.directory, self.end_offset)
        self._disk.replace_file(path, self.producers.snapshot(), sync=False)
        offsets = snapshot_offsets(self._disk, self.directory)
        # Recovery begins with the newest one that is not beyond its recovery point.
        needed = max((offset for offset in offsets if offset <= self.saved_flushed_offset), default=0)
        for offset in offsets[:-_SNAPSHOTS_KEPT]:
            if offset < needed or not self.producers.has_markers:
                self._disk.remove(snapshot_path(self.directory, offset))

    def close(self) -> None:
        """Write the rest of the indexes and a producer snapshot; the caller has synced the log."""
        for segment in self.segments:  # a full disk may have left index entries of sealed segments in memory
            segment.flush_indexes()
        self.write_producer_snapshot()

    def release(self) -> None:
        """Close the files of a removed log: a new log may soon use the same names."""
        for segment in self.segments:
            segment.release()

    # --- reading

    def read(self, offset: int, max_bytes: int, limit_offset: int) -> FileRange | None:
        """Whole batches from the one with this offset on, below the limit; None if there are none."""
        if offset < self.start_offset or offset > self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is out of the range {self.start_offset} to {self.end_offset} of {self.partition}",
            )
        if offset >= limit_offset:
            return None
        segments = self.segments.items
        index = bisect_right(self.segments.bases, offset) - 1
        while index < len(segments):
            segment = segments[index]
            position = segment.position_of(offset)
            if position is not None:
                if limit_offset >= segment.end_offset:
                    limit = segment.size
                else:
                    found = segment.position_of(limit_offset)
                    limit = segment.size if found is None else found
                if position >= limit:
                    return None
                end = segment.readable_end(position, segment.end_of_read(position, max_bytes, limit))
                return FileRange(segment.log, position, end - position)
            index += 1
        return None

    def is_warm(self, part: FileRange) -> bool:
        """Whether a range can be sent without waiting for the disk, and has been verified."""
        segments = self.segments
        active = segments.active
        if part.file is active.log and part.position >= active.unchecked_end:
            if active.size - part.position <= _WARM_BYTES:
                return True
        elif (segment := segments.of_file(part.file)) is not None and segment.is_unchecked(part.position, part.size):
            return False
        return part.file.is_cached(part.position, part.size)

    async def warm(self, part: FileRange) -> FileRange:
        """Read a cold range into memory and verify what has not been read since the start; returns the valid range."""
        # Found before the wait: compaction may remove it from the log in between, but its file stays readable.
        segment = next((segment for segment in self.segments if segment.holds(part.file)), None)
        data = await self._disk.offload(lambda: part.file.prefetch(part.position, part.size))
        end = part.position + part.size
        if segment is not None:
            segment.verify(part.position, data)
            end = segment.readable_end(part.position, end)
        return FileRange(part.file, part.position, end - part.position)

    async def offset_for_timestamp(self, timestamp: int, limit_offset: int, work: LongWork) -> TimestampedOffset:
        """The first record below the limit whose timestamp is at or after the given one."""
        return await TimestampSearch(self, self._disk, limit_offset, work).first_from(timestamp)

    async def offset_of_max_timestamp(self, limit_offset: int, work: LongWork) -> TimestampedOffset:
        """The first record below the limit with the largest timestamp of all."""
        return await TimestampSearch(self, self._disk, limit_offset, work).newest()

    def timestamp_at(self, offset: int) -> int:
        """The largest timestamp of the batch with this offset, or of the next batch; -1 if there is none."""
        for segment in self.segments.from_offset(offset):
            position = segment.position_of(offset)
            if position is not None:
                return next(segment.headers(position))[1].max_timestamp
        return NO_TIMESTAMP

    # --- removing

    def advance_start(self, offset: int) -> None:
        """Move the log start to an offset; whole segments below it may then be removed."""
        if offset > self.start_offset:
            self.start_offset = offset

    def remove_expired(
        self,
        limit_offset: int,
        archived_offset: int | None = None,
        epochs_from: int | None = None,
        most: int | None = None,
    ) -> list[Segment]:
        """Remove segments that have expired from the log, oldest first, none beyond the limit.

        A segment that must be archived first stays until it is, unless it lies below the log start. Epochs are dropped
        below `epochs_from`, or below the new log start. Each removal costs several disk calls; `most` limits their
        number, so that the caller can yield in between. A segment is removed only once the log start after it is
        durable; the next sync makes it so.
        """
        self.retention.waits_for_start = False
        if self.is_being_cleaned or self.is_being_cut:
            return []
        removed: list[Segment] = []
        for segment in self.retention.expired(limit_offset, archived_offset, most):
            if segment is self.segments.active:
                try:
                    self._roll()
                except PassingStorageError as error:
                    # The segments already taken out must still be removed, which is what frees space.
                    logger.warning("%s: cannot roll the active segment now, will retry: %s", self.partition, error)
                    break
            self._take_out_first()
            removed.append(segment)
        if removed:
            first = self.start_offset if epochs_from is None else min(epochs_from, self.start_offset)
            self.leader_epochs.truncate(first, self.end_offset)
        return removed

    def _take_out_first(self) -> None:
        segment = self.segments.take_first()
        self.transactions.segments_changed()
        self.start_offset = max(self.start_offset, segment.end_offset)
        segment.rename_for_deletion()
        logger.info(
            "%s: removed segment %d, the log now starts at %d", self.partition, segment.base_offset, self.start_offset
        )

    # --- compacting

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one segment in the place of several adjacent ones, whose files are renamed for deletion."""
        self.segments.require_run(old)
        for segment in old:
            segment.rename_for_deletion()
        self.segments.replace(old, new)
        self.transactions.segments_changed()


def _ignore(log: PartitionLog) -> None:
    """Do nothing: no listener is set yet."""
