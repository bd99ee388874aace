"""The transactions of one log: markers that it takes, and the aborted transactions that its readers skip.

Owns the order of steps when a marker is appended: the batch is in the log first, then the producer's state changes, and
an abort enters the index of the segment with the marker. A log without transactions pays a comparison for each batch.
Lookups read a bounded part of few indexes, whatever the log has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import BatchHeader
from tailrace.records.markers import Marker, read_marker
from tailrace.runtime.disk import Buffer, FileRange
from tailrace.storage.aborted_transactions import AbortedTransaction

if TYPE_CHECKING:
    from tailrace.storage.partition_log import PartitionLog

#: How many transactions may end within one read: a response lists each of them.
_MOST_IN_READ = 2000


class LogTransactions:
    """The transactions of one log."""

    __slots__ = ("_bases", "_log", "has_unwritten")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        # The base offsets of segments with aborted transactions, in order; None if that has to be found out again.
        self._bases: list[int] | None = None
        #: Whether a full disk has refused entries of an index; nothing may count as durable before they are written.
        self.has_unwritten = False

    def checked(self, data: Buffer, header: BatchHeader) -> Marker | None:
        """The marker in a batch without sequence numbers that is about to be appended; refuses a fenced producer."""
        producers = self._log.producers
        if not header.is_control:
            producers.check_unsequenced(header)
            return None
        marker = read_marker(data, header)
        if marker is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"The control batch for {self._log.partition} has no marker")
        producers.check_marker(marker)
        return marker

    def end(self, marker: Marker, offset: int, timestamp: int) -> None:
        """A marker was appended to the active segment at an offset."""
        log = self._log
        aborted = log.producers.end_transaction(marker, offset, timestamp)
        log.bound_producers()  # the marker may be all there is of its producer
        if aborted is None:
            return
        segment = log.segments.active
        index = segment.transaction_index
        if not len(index):
            log.names_changed()
            if self._bases is not None:
                insort(self._bases, segment.base_offset)
        index.add(aborted)
        self.has_unwritten = self.has_unwritten or not index.is_written

    def write_rest(self) -> bool:
        """Write what a full disk refused; returns whether everything is in the files."""
        if self.has_unwritten:
            self.has_unwritten = not all(segment.transaction_index.flush() for segment in self._log.segments)
        return not self.has_unwritten

    def end_replicated(self, data: Buffer, position: int, header: BatchHeader, timestamp: int) -> None:
        """A control batch of the leader was appended."""
        marker = read_marker(data, header, position)
        if marker is not None:
            self.end(marker, header.base_offset, timestamp)
        elif header.record_count == 0:
            self._log.producers.marker_is_gone(header)

    def segments_changed(self) -> None:
        """Segments were removed or replaced."""
        self._bases = None

    def aborted_in(self, offset: int, part: FileRange) -> tuple[FileRange, Sequence[AbortedTransaction]]:
        """The aborted transactions with offsets in what was read from an offset on, ordered by first offset.

        If very many end there, the part that was read ends early.
        """
        segments = self._log.segments
        bases = self._bases
        if bases is None:
            bases = self._bases = [each.base_offset for each in segments if len(each.transaction_index)]
        if not bases or offset > self._last_marker_offset(bases[-1]):
            return part, ()
        segment = segments.of_file(part.file)
        if segment is None:
            return part, ()
        if (end_offset := segment.transaction_index.end_after(offset, _MOST_IN_READ)) is not None:
            end = segment.position_of(end_offset)
            if end is not None and part.position < end < part.position + part.size:
                part = FileRange(part.file, part.position, end - part.position)
        upper_offset = segment.offset_at(part.position + part.size)
        found: list[AbortedTransaction] = []
        for base_offset in bases[bisect_left(bases, segment.base_offset) :]:
            index = segments[segments.index_of(base_offset)].transaction_index
            if index.collect(offset, upper_offset, found):
                break
        found.sort(key=lambda each: each.first_offset)
        return part, found

    def _last_marker_offset(self, base_offset: int) -> int:
        segments = self._log.segments
        last = segments[segments.index_of(base_offset)].transaction_index.last
        return -1 if last is None else last.last_offset
