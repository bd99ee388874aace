"""One segment: a log file with its two sparse indexes, and the index of aborted transactions if it has any.

The log file holds whole batches with growing offsets. The sparse indexes only speed up lookups. The partition log, not
the segment, decides which offsets may be read or removed, and what is aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_TIMESTAMP
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, iterate_batches, read_header
from tailrace.records.markers import Marker, read_marker
from tailrace.runtime.disk import Buffer, Disk, File, Readable
from tailrace.storage.aborted_transactions import TransactionIndex
from tailrace.storage.sparse_index import OffsetIndex, TimeIndex

logger = logging.getLogger("tailrace.storage")

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
#: Suffixes of files that are being deleted, that compaction is writing, and that are complete but not swapped in.
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

_SCAN_BYTES = 16 * 1024
#: Positions kept of recently appended or read offsets, for consumers near each other or near the end.
_REMEMBERED_POSITIONS = 64
_REMADE_INDEX_INTERVAL_BYTES = 4096
_NOT_YET_KNOWN = 1 << 62
#: Relative offsets in an index have 32 bits.
MAX_RELATIVE_OFFSET = 2**31 - 1


def file_stem(base_offset: int) -> str:
    """The common name of all files of a segment."""
    return f"{base_offset:020d}"


class CorruptSegmentError(KafkaError):
    """The bytes in a segment are not those that were appended; nothing from there on is served."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at position {position}")
        self.position = position


class SegmentRemovedError(KafkaError):
    """The segment was removed from its log; its files are not opened again, as new ones may have their names."""

    def __init__(self, path: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{path} was removed")


class Segment:
    """A run of batches in one file; only the active (newest) segment of a log grows."""

    __slots__ = (
        "_bytes_since_entry",
        "_checked",
        "_disk",
        "_log",
        "_max_timestamp",
        "_offset_index",
        "_offset_of_max_timestamp",
        "_positions",
        "_stem",
        "_suffix",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "corrupt_position",
        "end_offset",
        "first_append_ms",
        "first_timestamp",
        "is_released",
        "is_removed",
        "unchecked_end",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        end_offset: int,
        *,
        create: bool = False,
        suffix: str = "",
    ) -> None:
        self._disk = disk
        self._stem = f"{directory}/{file_stem(base_offset)}"
        self._suffix = suffix
        self._log: File | None = disk.open(self._path(LOG_SUFFIX), create=True) if create else None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        self._bytes_since_entry = 0
        self._positions: dict[int, int] = {}
        self._max_timestamp: int | None = NO_TIMESTAMP if create else None
        self._offset_of_max_timestamp = base_offset
        self.base_offset = base_offset
        self.end_offset = end_offset
        #: The time of the first batch, which decides when the segment rolls.
        self.first_timestamp: int | None = None
        #: By the broker's clock; None if nothing was appended since the start.
        self.first_append_ms: int | None = None
        #: The position of the first batch with a wrong CRC; nothing from there on is served.
        self.corrupt_position: int | None = None
        #: Everything below existed at the start, and is verified before it is first sent.
        self.unchecked_end = 0 if create else _NOT_YET_KNOWN
        # The range of it that is verified.
        self._checked = (0, 0)
        self.is_removed = False
        self.is_released = False

    def _path(self, kind: str) -> str:
        return self._stem + kind + self._suffix

    @property
    def is_in_place(self) -> bool:
        """Whether its files have the names that the log looks for."""
        return not self._suffix

    @property
    def log(self) -> File:
        if self._log is None:
            self._require_files()
            self._log = self._disk.open(self._path(LOG_SUFFIX))
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._require_files()
            self._offset_index = OffsetIndex(self._disk, self._path(INDEX_SUFFIX))
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._require_files()
            self._time_index = TimeIndex(self._disk, self._path(TIME_INDEX_SUFFIX))
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The aborted transactions whose marker is in this segment."""
        if self._transaction_index is None:
            self._require_files()
            self._transaction_index = TransactionIndex(self._disk, self._path(TRANSACTION_INDEX_SUFFIX))
        return self._transaction_index

    def marker_at(self, position: int, header: BatchHeader) -> Marker | None:
        """The marker in a control batch; None if it has none."""
        return read_marker(self.log.read(position, header.size), header)

    def _require_files(self) -> None:
        if self.is_released:
            raise SegmentRemovedError(self._path(LOG_SUFFIX))

    @property
    def index_bytes(self) -> int:
        """The size of the larger index, or 0 if it is not open yet."""
        index = self._offset_index
        return 0 if index is None else index.size_bytes

    @property
    def sealed_index_bytes(self) -> int:
        """The size of the larger index of a sealed segment; opens the indexes."""
        return max(self.offset_index.size_bytes, self.time_index.size_bytes)

    @property
    def has_index_files(self) -> bool:
        return self._disk.exists(self._path(INDEX_SUFFIX)) and self._disk.exists(self._path(TIME_INDEX_SUFFIX))

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
        """The last offset of the batch with the largest timestamp."""
        if self._max_timestamp is None:
            self._find_max_timestamp()
        return self._offset_of_max_timestamp

    def _find_max_timestamp(self) -> None:
        """Use the time index for what it covers, and scan the batches after it."""
        last = self.time_index.last()
        largest, offset = (last[0], self.base_offset + last[1]) if last else (NO_TIMESTAMP, self.base_offset)
        for _, header in self.headers(self.position_of(offset) or 0 if last else 0):
            if header.max_timestamp > largest and header.record_count:
                largest, offset = header.max_timestamp, header.last_offset
        self._max_timestamp, self._offset_of_max_timestamp = largest, offset

    def append(self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int, index_interval: int) -> None:
        """Append one batch with one write, and an index entry every `index_interval` bytes."""
        log = self._log or self.log
        position = log.size
        # Everything that can fail comes before the write. Otherwise a refused batch could be in the file, and the next
        # one would get the same offsets.
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

    def append_run(
        self, data: Buffer, batches: Sequence[tuple[int, BatchHeader]], first_position: int, index_interval: int
    ) -> None:
        """Append consecutive batches with one write; each comes with its position, relative to `first_position`."""
        log = self.log
        at = log.size - first_position
        # Everything that can fail comes before the write, as for a single batch.
        if self._max_timestamp is None:
            self._find_max_timestamp()
        if self._bytes_since_entry + len(data) - batches[-1][1].size > index_interval:
            self.open_indexes()
        log.append(data)
        for position, header in batches:
            self.index_batch(at + position, header, index_interval)
        self._remember(batches[-1][1].base_offset, at + batches[-1][0])

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
        """Ensure that both index files exist and are open, so that an entry can be added without a read."""
        self.offset_index.last()
        self.time_index.last()
        return self.offset_index, self.time_index

    def seal(self) -> None:
        """The segment will not grow any more: complete the indexes and drop what only appends need."""
        self.open_indexes()
        self._index_time()
        self.flush_indexes()
        self._positions.clear()

    def flush_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.flush()
        if self._time_index is not None:
            self._time_index.flush()
        if self._transaction_index is not None:
            self._transaction_index.flush()

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Batch headers with their positions, from a batch boundary on; CorruptSegmentError at an invalid header."""
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
        """The position of the batch with this offset or, in a gap, of the next batch; None past the end."""
        known = self._positions.get(offset)
        if known is not None:
            return known
        entry = self._index_entry(offset - self.base_offset)
        for position, header in self.headers(entry[1] if entry else 0):
            if header.last_offset >= offset:
                self._remember(offset, position)
                return position
        return None

    def _index_entry(self, value: int, by: int = 0) -> tuple[int, int] | None:
        """The last index entry not above a value; an index that does not match its log is rebuilt first."""
        entry = self.offset_index.floor(value, by)
        if entry is None or self._points_right(entry):
            return entry
        logger.warning("Rebuilding %s, which has an entry that does not match the log", self._path(INDEX_SUFFIX))
        end_offset = self.end_offset
        self.restart_indexes()
        try:
            for position, header in self.headers():
                self.index_batch(position, header, _REMADE_INDEX_INTERVAL_BYTES)
        except CorruptSegmentError as error:
            logger.error("%s; its index ends there", error)
        self.end_offset = end_offset
        self.flush_indexes()
        return self.offset_index.floor(value, by)

    def _points_right(self, entry: tuple[int, int]) -> bool:
        """Whether an index entry names the batch it points to; bits may have changed on disk."""
        data = self.log.read(entry[1], HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return False
        header = read_header(data)
        return header.magic == MAGIC and header.last_offset == self.base_offset + entry[0]

    def offset_at(self, position: int) -> int:
        """The base offset of the batch at a position, or the segment's end."""
        if position >= self.size:
            return self.end_offset
        return int.from_bytes(self.log.read(position, 8), "big")

    def end_of_read(self, position: int, max_bytes: int, limit: int) -> int:
        """A batch boundary at most `max_bytes` after a position, but after at least one whole batch."""
        if limit - position <= max_bytes:
            return limit
        entry = self._index_entry(position + max_bytes, by=1)
        if entry is not None and entry[1] > position:
            # The next read will ask for the first offset of that batch.
            self._remember(self.offset_at(entry[1]), entry[1])
            return min(entry[1], limit)
        for start, header in self.headers(position):
            end = start + header.size
            if end - position >= max_bytes or end >= limit:
                break
        if end - position > max_bytes and start > position:
            end = start
        return min(end, limit)

    def first_batch_timestamp(self) -> int:
        """The largest timestamp of the first batch, or -1 if the segment is empty."""
        if self.first_timestamp is None:
            _, header = next(self.headers(), (0, None))
            if header is None:
                return NO_TIMESTAMP
            self.first_timestamp = header.max_timestamp
        return self.first_timestamp

    def batches_from(self, timestamp: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from an offset on, without leading ones that are known to be older than `timestamp`."""
        entry = self.time_index.floor(timestamp - 1)
        if entry is not None:
            offset = max(offset, self.base_offset + entry[1])
        position = self.position_of(offset) if offset > self.base_offset else 0
        if position is None:
            return
        yield from self.headers(position)

    def verify(self, position: int, data: bytes) -> None:
        """Check CRCs and offsets of batches read from a position, and note the first bad one."""
        view = memoryview(data)
        sound = before = 0
        next_offset = self.base_offset
        for at, header in iterate_batches(view):
            if header.magic != MAGIC or not has_valid_crc(view, header, at) or header.next_offset > self.end_offset:
                break
            if header.base_offset < next_offset:
                # No CRC covers the offset. One of the two is wrong, and nothing shows which.
                sound = before
                break
            before, sound, next_offset = at, at + header.size, header.next_offset
        self._note_checked(position, position + sound)
        if sound < len(data):
            self.found_corrupt(position + sound)

    def is_unchecked(self, position: int, size: int) -> bool:
        """Whether a range has bytes that were not verified since the start."""
        first, last = self._checked
        return position < self.unchecked_end and not first <= position <= position + size <= last

    def _note_checked(self, start: int, end: int) -> None:
        """Note a verified range, merged with the last one if they touch: readers mostly go forward."""
        first, last = self._checked
        if start <= last and first <= end:
            start, end = min(start, first), max(end, last)
        self._checked = (start, end)

    def found_corrupt(self, position: int) -> None:
        """A batch differs from what was appended: log it once, and serve nothing from there on."""
        if self.corrupt_position is None or position < self.corrupt_position:
            logger.error(
                "%s; records from there on are not served", CorruptSegmentError(self._path(LOG_SUFFIX), position)
            )
            self.corrupt_position = position

    def holds(self, file: Readable) -> bool:
        """Whether a file is this segment's log."""
        return self._log is file

    def readable_end(self, position: int, end: int) -> int:
        """The end of a read, limited to the first batch known to be bad."""
        if self.corrupt_position is None or end <= self.corrupt_position:
            return end
        if position >= self.corrupt_position:
            raise CorruptSegmentError(self._path(LOG_SUFFIX), self.corrupt_position)
        return self.corrupt_position

    def truncate(self, position: int, end_offset: int) -> None:
        """Truncate the log at a batch boundary, and the indexes with it."""
        # Indexes first: an entry may point past the end, but never to other data written in the same place.
        self.offset_index.truncate(self.offset_index.count_below(position, by=1))
        self.time_index.truncate(self.time_index.count_below(end_offset - self.base_offset, by=1))
        self.transaction_index.truncate(end_offset)
        self.log.truncate(position)
        self.end_offset = end_offset
        self._positions.clear()
        self._max_timestamp = None
        self._bytes_since_entry = 0
        first, last = self._checked
        self._checked = (min(first, position), min(last, position))
        if self.corrupt_position is not None and self.corrupt_position >= position:
            self.corrupt_position = None
        if position == 0:
            self.first_timestamp = self.first_append_ms = None

    def grow_on(self) -> None:
        """Become the active segment of a truncated log: what is appended from now on needs no verification."""
        self.unchecked_end = min(self.unchecked_end, self.size)

    def restart_indexes(self) -> None:
        """Empty both indexes, to be rebuilt with `index_batch` for every batch."""
        self.offset_index.truncate(0)
        self.time_index.truncate(0)
        self._positions.clear()
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._bytes_since_entry = 0

    def index_batch(self, position: int, header: BatchHeader, index_interval: int) -> None:
        """Index a batch that is already in the log, exactly as appending it would have."""
        # A batch emptied by compaction has no record with its timestamp.
        if header.max_timestamp > self.max_timestamp and header.record_count:
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

    def change_suffix(self, suffix: str) -> None:
        """Rename the files out of the log or into it. Readers with open files are not affected."""
        former, self._suffix = self._suffix, suffix
        # The log file last: once it has its new name, the others have theirs or are rebuilt.
        for kind in reversed(SEGMENT_SUFFIXES):
            if self._disk.exists(self._stem + kind + former):
                self._disk.rename(self._stem + kind + former, self._stem + kind + suffix)

    def rename_for_deletion(self) -> None:
        """Rename the files for deletion."""
        self.is_removed = True
        self.change_suffix(DELETED_SUFFIX)

    def release(self) -> None:
        """Close the files, which are about to be removed; only current readers keep them open."""
        self.is_released = True
        self._log = self._offset_index = self._time_index = self._transaction_index = None

    @property
    def file_names(self) -> list[str]:
        """The current names of its files in the log's directory; some may not exist."""
        return [self._path(kind).rpartition("/")[2] for kind in SEGMENT_SUFFIXES]

    def remove_files(self) -> None:
        """Remove the files under their current names: a new log may use the others."""
        self.release()
        for kind in SEGMENT_SUFFIXES:
            self._disk.remove(self._path(kind))

    def files_to_sync(self) -> list[File]:
        """The files that a sync makes durable, in this order: the log, and the aborted transactions that are in it."""
        index = self._transaction_index
        return [self.log] if index is None or index.file is None else [self.log, index.file]

    def sync_files(self) -> None:
        """Make the log file and both indexes durable; blocks."""
        self.log.sync()
        self.offset_index.sync()
        self.time_index.sync()
