"""Searches of one log by timestamp.

Producers determine the headers and the decompressed size of batches, so a search runs in slices. The log may change
between slices, and each slice uses its current state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import KafkaError
from tailrace.model import NO_OFFSET, NO_TIMESTAMP
from tailrace.records.batch import HEADER_BYTES, BatchHeader
from tailrace.records.compression import decompress, most_unpacked
from tailrace.records.time_search import TimeSearch
from tailrace.runtime.disk import Disk
from tailrace.runtime.long_work import LongWork
from tailrace.storage.segment import Segment

if TYPE_CHECKING:
    from tailrace.storage.partition_log import PartitionLog

#: Limit for decompressing a batch in a search; for a larger one the batch itself is the result.
_SEARCHED_BATCH_BYTES = 32 << 20
#: Batches up to this size, compressed and decompressed, are searched in the event loop: a thread would cost more.
_SMALL_BYTES = 8 * 1024
_SMALL_UNPACKED_BYTES = 64 * 1024
#: How many records or batches are checked in one slice: less than a millisecond.
_SLICE_RECORDS = 1000


class TimestampedOffset(NamedTuple):
    """The result of a search by timestamp."""

    offset: int
    timestamp: int


NOT_FOUND = TimestampedOffset(NO_OFFSET, NO_TIMESTAMP)


class TimestampSearch:
    """A search for records below an offset limit."""

    __slots__ = ("_disk", "_limit_offset", "_log", "_work")

    def __init__(self, log: PartitionLog, disk: Disk, limit_offset: int, work: LongWork) -> None:
        self._log = log
        self._disk = disk
        self._limit_offset = limit_offset
        self._work = work

    async def newest(self) -> TimestampedOffset:
        """The first record below the limit with the largest timestamp of all."""
        start_offset = self._log.start_offset
        candidates = [segment for segment in self._log.segments if segment.end_offset > start_offset]
        best = max(candidates, key=lambda segment: segment.max_timestamp, default=None)
        if best is None or best.max_timestamp < 0 or start_offset >= self._limit_offset:
            return NOT_FOUND
        return await self.first_from(best.max_timestamp)

    async def first_from(self, timestamp: int) -> TimestampedOffset:
        """The first record below the limit whose timestamp is at or after the given one."""
        log, work = self._log, self._work
        offset = log.start_offset
        while True:
            looked_at = self._next_batch_with(timestamp, offset)
            if looked_at is None:
                return NOT_FOUND
            segment, position, header = looked_at
            offset = header.last_offset + 1
            if header.max_timestamp < timestamp:
                await work.slice(_nothing)
                continue
            wanted = range(log.start_offset, self._limit_offset)
            try:
                search = self._search_at_once(segment, position, header, timestamp, wanted)
                if search is None:
                    search = await self._search_beside(segment, position, header, timestamp, wanted)
            except KafkaError:
                # Its producer made records that cannot be decoded: the batch itself is the result.
                return TimestampedOffset(max(header.base_offset, log.start_offset), header.max_timestamp)
            if search.found is not None:
                return TimestampedOffset(*search.found)

    def _next_batch_with(self, timestamp: int, offset: int) -> tuple[Segment, int, BatchHeader] | None:
        """The next batch whose header promises a record at or after `timestamp`, or the last batch of this slice."""
        looked_at, first = 0, max(offset, self._log.start_offset)
        for segment in self._log.segments.from_offset(offset):
            if segment.end_offset <= first or segment.max_timestamp < timestamp:
                continue
            for position, header in segment.batches_from(timestamp, first):
                if header.base_offset >= self._limit_offset:
                    return None
                looked_at += 1
                if header.max_timestamp >= timestamp or looked_at == _SLICE_RECORDS:
                    return segment, position, header
        return None

    def _search_at_once(
        self, segment: Segment, position: int, header: BatchHeader, timestamp: int, wanted: range
    ) -> TimeSearch | None:
        """Search a small batch; None if it is too much for one step."""
        if header.size > _SMALL_BYTES or header.record_count > _SLICE_RECORDS:
            return None
        data = segment.log.read(position, header.size)
        try:
            body = bytes(decompress(header.compression, memoryview(data)[HEADER_BYTES:], _SMALL_UNPACKED_BYTES))
        except KafkaError:
            return None  # too large or malformed: the thread determines which
        search = TimeSearch(body, header, timestamp, wanted)
        search.advance(header.record_count)
        return search

    async def _search_beside(
        self, segment: Segment, position: int, header: BatchHeader, timestamp: int, wanted: range
    ) -> TimeSearch:
        def read() -> bytes:
            packed = memoryview(segment.log.prefetch(position, header.size))[HEADER_BYTES:]
            return bytes(decompress(header.compression, packed, _SEARCHED_BATCH_BYTES))

        work = self._work
        packed_bytes = header.size - HEADER_BYTES
        unpacked_bytes = most_unpacked(header.compression, packed_bytes, _SEARCHED_BATCH_BYTES)
        async with work.holding(packed_bytes + unpacked_bytes) as held:
            body = await self._disk.offload(read)
            held.shrink(len(body))
            search = TimeSearch(body, header, timestamp, wanted)
            while not await work.slice(lambda: search.advance(_SLICE_RECORDS)):
                pass
        return search


def _nothing() -> None:
    """Do nothing: the slice only yields to other tasks."""
