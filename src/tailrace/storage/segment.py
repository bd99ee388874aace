"""One segment: a log file with its two sparse indexes.

The log file holds whole batches with growing offsets; the indexes only speed up finding them. A segment does
not know which offsets may be read or removed: that is the partition log's business.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_TIMESTAMP
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, iterate_batches, read_header
from tailrace.runtime.disk import Buffer, Disk, File
from tailrace.storage.sparse_index import OffsetIndex, TimeIndex

logger = logging.getLogger("tailrace.storage")

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

_SCAN_BYTES = 16 * 1024
#: Positions of recently appended or read offsets, for consumers that follow each other or the end.
_REMEMBERED_POSITIONS = 64
#: Relative offsets in an index are 32 bits.
MAX_RELATIVE_OFFSET = 2**31 - 1


def file_stem(base_offset: int) -> str:
    """The name that all files of a segment share."""
    return f"{base_offset:020d}"


class CorruptSegmentError(KafkaError):
    """Bytes in a segment are not what was appended; nothing from there on is served."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at position {position}")
        self.position = position


class Segment:
    """A run of batches in one file; the newest segment of a log is the only one that grows."""

    __slots__ = (
        "_bytes_since_entry",
        "_disk",
        "_log",
        "_max_timestamp",
        "_offset_index",
        "_offset_of_max_timestamp",
        "_positions",
        "_stem",
        "_time_index",
        "base_offset",
        "corrupt_position",
        "end_offset",
        "first_timestamp",
        "is_removed",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, end_offset: int, *, create: bool = False) -> None:
        self._disk = disk
        self._stem = f"{directory}/{file_stem(base_offset)}"
        self._log: File | None = disk.open(self._stem + LOG_SUFFIX, create=True) if create else None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._bytes_since_entry = 0
        self._positions: dict[int, int] = {}
        self._max_timestamp: int | None = NO_TIMESTAMP if create else None
        self._offset_of_max_timestamp = base_offset
        self.base_offset = base_offset
        self.end_offset = end_offset
        #: Of the first batch appended, which decides when the segment is old enough to roll.
        self.first_timestamp: int | None = None
        #: Where a batch was found whose CRC is wrong; nothing from there on is served.
        self.corrupt_position: int | None = None
        self.is_removed = False

    @property
    def log(self) -> File:
        if self._log is None:
            self._log = self._disk.open(self._stem + LOG_SUFFIX)
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = OffsetIndex(self._disk, self._stem + INDEX_SUFFIX)
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._time_index = TimeIndex(self._disk, self._stem + TIME_INDEX_SUFFIX)
        return self._time_index

    @property
    def index_bytes(self) -> int:
        """The size of the larger index, once there is one."""
        index = self._offset_index
        return 0 if index is None else index.size_bytes

    @property
    def has_index_files(self) -> bool:
        return self._disk.exists(self._stem + INDEX_SUFFIX) and self._disk.exists(self._stem + TIME_INDEX_SUFFIX)

    @property
    def size(self) -> int:
        return self.log.size

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any record in the segment, or -1."""
        if self._max_timestamp is None:
            self._find_max_timestamp()
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch that has the largest timestamp."""
        if self._max_timestamp is None:
            self._find_max_timestamp()
        return self._offset_of_max_timestamp

    def _find_max_timestamp(self) -> None:
        """Take the time index's word for what it covers and look at the batches after it."""
        last = self.time_index.last()
        largest, offset = (last[0], self.base_offset + last[1]) if last else (NO_TIMESTAMP, self.base_offset)
        for _, header in self.headers(self.position_of(offset) or 0 if last else 0):
            if header.max_timestamp > largest:
                largest, offset = header.max_timestamp, header.last_offset
        self._max_timestamp, self._offset_of_max_timestamp = largest, offset

    def append(self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int, index_interval: int) -> None:
        """Write one batch at the end with one call, and an index entry every so many bytes."""
        log = self._log or self.log
        position = log.size
        # Whatever can fail comes before the write: a batch that is in the file but refused would be followed by
        # another one with the same offsets.
        newest = self._max_timestamp
        is_newest = max_timestamp > (self.max_timestamp if newest is None else newest)
        entry_is_due = self._bytes_since_entry > index_interval
        if entry_is_due:
            self.open_indexes()
        log.append(data)
        if is_newest:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if entry_is_due:
            self.offset_index.append(last_offset - self.base_offset, position)
            self._index_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += log.size - position
        self.end_offset = last_offset + 1
        positions = self._positions
        positions[base_offset] = position
        if len(positions) > _REMEMBERED_POSITIONS:
            del positions[next(iter(positions))]

    def _index_time(self) -> None:
        last = self.time_index.last()
        if self.max_timestamp >= 0 and (last is None or self.max_timestamp > last[0]):
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def _remember(self, offset: int, position: int) -> None:
        positions = self._positions
        positions[offset] = position
        if len(positions) > _REMEMBERED_POSITIONS:
            del positions[next(iter(positions))]

    def open_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Make sure that both index files are there and open."""
        return self.offset_index, self.time_index

    def seal(self) -> None:
        """Nothing more will be appended: complete the indexes and forget what only writers need."""
        self.open_indexes()
        self._index_time()
        self.flush_indexes()
        self._positions.clear()

    def flush_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.flush()
        if self._time_index is not None:
            self._time_index.flush()

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Batch headers with their positions from a batch boundary on; CorruptSegmentError where they make no sense."""
        log = self.log
        size = log.size
        end = size if end is None else end
        chunk = b""
        chunk_at = position
        while position < end:
            if position + HEADER_BYTES > chunk_at + len(chunk):
                chunk = log.read(position, _SCAN_BYTES)
                chunk_at = position
                if len(chunk) < HEADER_BYTES:
                    raise CorruptSegmentError(log.path, position)
            header = read_header(chunk, position - chunk_at)
            if (
                header.magic != MAGIC
                or not HEADER_BYTES <= header.size <= size - position
                or header.base_offset < self.base_offset
            ):
                raise CorruptSegmentError(log.path, position)
            yield position, header
            position += header.size

    def position_of(self, offset: int) -> int | None:
        """Where the batch starts that holds an offset or, in a gap, the first after it; None past the end."""
        known = self._positions.get(offset)
        if known is not None:
            return known
        entry = self.offset_index.floor(offset - self.base_offset)
        for position, header in self.headers(entry[1] if entry else 0):
            if header.last_offset >= offset:
                self._remember(offset, position)
                return position
        return None

    def end_of_read(self, position: int, max_bytes: int, limit: int) -> int:
        """A batch boundary at most `max_bytes` after a position, but after one whole batch in any case."""
        if limit - position <= max_bytes:
            return limit
        entry = self.offset_index.floor(position + max_bytes, by=1)
        if entry is not None and entry[1] > position:
            # Whoever reads on will ask for the first offset of the batch there.
            self._remember(int.from_bytes(self.log.read(entry[1], 8), "big"), entry[1])
            return min(entry[1], limit)
        for start, header in self.headers(position):
            end = start + header.size
            if end - position >= max_bytes or end >= limit:
                break
        if end - position > max_bytes and start > position:
            end = start
        return min(end, limit)

    def batches_with(self, timestamp: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Each batch not below an offset that says it has a record with a timestamp at or after the given one."""
        entry = self.time_index.floor(timestamp - 1)
        if entry is not None:
            offset = max(offset, self.base_offset + entry[1])
        position = self.position_of(offset) if offset > self.base_offset else 0
        if position is None:
            return
        for start, header in self.headers(position):
            if header.max_timestamp >= timestamp:
                yield start, header

    def verify(self, position: int, data: bytes) -> None:
        """Check the CRCs of batches read from a position, and remember where the first bad one is."""
        view = memoryview(data)
        sound = 0
        for at, header in iterate_batches(view):
            if header.magic != MAGIC or not has_valid_crc(view, header, at):
                break
            sound = at + header.size
        if sound < len(data):
            found = position + sound
            logger.error("%s; records from there on are not served", CorruptSegmentError(self.log.path, found))
            self.corrupt_position = found if self.corrupt_position is None else min(found, self.corrupt_position)

    def holds(self, file: File) -> bool:
        """Whether a file is this segment's log."""
        return self._log is file

    def readable_end(self, position: int, end: int) -> int:
        """How far a read may go before it meets a batch known to be bad."""
        if self.corrupt_position is None or end <= self.corrupt_position:
            return end
        if position >= self.corrupt_position:
            raise CorruptSegmentError(self.log.path, self.corrupt_position)
        return self.corrupt_position

    def truncate(self, position: int, end_offset: int) -> None:
        """Cut the log at a batch boundary, and the indexes with it."""
        self.log.truncate(position)
        self.end_offset = end_offset
        self._positions.clear()
        self._max_timestamp = None
        self._bytes_since_entry = 0
        while (last := self.offset_index.last()) is not None and last[1] >= position:
            self.offset_index.truncate(len(self.offset_index) - 1)
        while (entry := self.time_index.last()) is not None and self.base_offset + entry[1] >= end_offset:
            self.time_index.truncate(len(self.time_index) - 1)

    def restart_indexes(self) -> None:
        """Forget both indexes: they are about to be rebuilt by `index_batch` for every batch."""
        self.offset_index.truncate(0)
        self.time_index.truncate(0)
        self._positions.clear()
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._bytes_since_entry = 0

    def index_batch(self, position: int, header: BatchHeader, index_interval: int) -> None:
        """Enter a batch that is already in the log, exactly as appending it would have."""
        if header.max_timestamp > self.max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._offset_of_max_timestamp = header.last_offset
        if self._bytes_since_entry > index_interval:
            self.offset_index.append(header.last_offset - self.base_offset, position)
            self._index_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size
        self.end_offset = header.next_offset
        if self.first_timestamp is None:
            self.first_timestamp = header.max_timestamp

    def rename_for_deletion(self) -> None:
        """Take the files out of the log's sight; readers that hold them go on."""
        self.is_removed = True
        for suffix in SEGMENT_SUFFIXES:
            if self._disk.exists(self._stem + suffix):
                self._disk.rename(self._stem + suffix, self._stem + suffix + DELETED_SUFFIX)

    def remove_files(self) -> None:
        """Remove the files, under the names they have now: a new log may have taken the others."""
        for suffix in SEGMENT_SUFFIXES:
            self._disk.remove(self._stem + suffix + (DELETED_SUFFIX if self.is_removed else ""))

    def sync(self) -> None:
        """Make the log file durable; blocks."""
        self.log.sync()
