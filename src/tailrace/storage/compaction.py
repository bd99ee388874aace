"""Compaction of a log: decides which records stay, and writes segments with only those.

It runs in the helper, on closed segments, in two steps that share only a file. The first finds the newest offset of
each key in the dirty part of the log. The second writes one cleaned segment for each group of segments. The rules are
Kafka's: the newest record of each key stays, with its offset; a tombstone stays until its delete horizon; the last
batch of each producer and the last batch of all stay, empty if need be. A cleaned segment is complete and synced when
its function returns, under a name that the log does not use. Another module swaps it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tailrace.errors import KafkaError
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, read_header
from tailrace.records.raw_records import RawRecord, empty_batch, find_records, rebuild_batch, unpack_records
from tailrace.runtime.disk import Buffer, Disk
from tailrace.runtime.helper import HelperError
from tailrace.storage.aborted_transactions import AbortedTransaction, read_aborted, render_aborted
from tailrace.storage.cleaned_transactions import CleanedTransactions
from tailrace.storage.offset_map import OffsetMap
from tailrace.storage.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_stem,
)

T = TypeVar("T")

_READ_BYTES = 1 << 20
_WRITE_BYTES = 1 << 20
#: A batch that decompresses to more than this makes its partition uncleanable.
_MAX_UNPACKED_BYTES = 256 << 20
#: Holds the newest offsets between the two steps; the next start removes it like other unfinished files.
OFFSET_MAP = "offset-map" + CLEANED_SUFFIX


class SegmentRange(NamedTuple):
    """A sealed segment: its offset range and its size."""

    base_offset: int
    end_offset: int
    size: int = 0
    index_bytes: int = 0


class Damage(NamedTuple):
    """A batch that cannot be cleaned: its segment, its position and the reason."""

    base_offset: int
    position: int
    reason: str
    #: Whether its bytes are as they were written, so that the producer is at fault.
    is_as_written: bool


class MapBuilt(NamedTuple):
    """The result of building the map of newest offsets."""

    latest_offset: int
    keys: int
    bytes_read: int
    aborted: tuple[AbortedTransaction, ...]


class Rules(NamedTuple):
    """The parameters of a cleaning besides the map."""

    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    #: The offset after the last one in the map; the batch that ends there always stays.
    end_offset: int
    #: The last offset (or -1) and the epoch of each known producer.
    producers: Mapping[int, tuple[int, int]]


class Cleaned(NamedTuple):
    """A cleaned segment, written and synced."""

    size: int
    bytes_read: int
    records_read: int
    records_kept: int
    #: State for cleaning the next group.
    transactions: CleanedTransactions


class _DamageError(Exception):
    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.reason)
        self.damage = damage


# --- grouping


def group_segments(segments: Sequence[SegmentRange], max_bytes: int, max_index_bytes: int) -> list[list[SegmentRange]]:
    """Group adjacent segments that fit into one segment, by their sizes before cleaning."""
    groups: list[list[SegmentRange]] = []
    size = index_bytes = 0
    for segment in segments:
        group = groups[-1] if groups else None
        if (
            group is not None
            and size + segment.size <= max_bytes
            and index_bytes + segment.index_bytes <= max_index_bytes
            and segment.end_offset - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            group.append(segment)
            size += segment.size
            index_bytes += segment.index_bytes
        else:
            groups.append([segment])
            size, index_bytes = segment.size, segment.index_bytes
    return groups


# --- the newest offset of each key


def build_offset_map(
    disk: Disk,
    directory: str,
    segments: Sequence[SegmentRange],
    all_bases: Sequence[int],
    first_dirty_offset: int,
    max_bytes: int,
    load_factor: float,
    salt: bytes,
) -> MapBuilt | Damage:
    """Find the newest offset of each key from the first dirty offset on, as far as memory allows, and save the map."""
    aborted = read_aborted(disk, [f"{directory}/{file_stem(base)}{TRANSACTION_INDEX_SUFFIX}" for base in all_bases])
    dirty = [segment for segment in segments if segment.end_offset > first_dirty_offset]
    offsets = OffsetMap(max_bytes, load_factor, salt)
    transactions = CleanedTransactions.of(one for one in aborted if one.last_offset >= first_dirty_offset)
    bytes_read = 0
    try:
        for segment in dirty:
            bytes_read += segment.size
            if not _map_segment(disk, directory, segment, offsets, first_dirty_offset, transactions):
                break
            # The segment may have a gap at its end.
            offsets.latest_offset = max(offsets.latest_offset, segment.end_offset - 1)
    except _DamageError as error:
        return error.damage
    path = f"{directory}/{OFFSET_MAP}"
    disk.remove(path)
    disk.open(path, create=True).append(offsets.dump())
    return MapBuilt(offsets.latest_offset, len(offsets), bytes_read, tuple(aborted))


def _map_segment(
    disk: Disk,
    directory: str,
    segment: SegmentRange,
    offsets: OffsetMap,
    first_dirty_offset: int,
    transactions: CleanedTransactions,
) -> bool:
    """Add the keys of one segment; False if the map filled up before its end."""
    for position, header, data in _batches(disk, directory, segment):
        if header.last_offset < first_dirty_offset:
            continue
        if header.is_control:
            body = _unpack(segment, position, header, data)
            _judged(segment, position, partial(transactions.saw_control, header, body))
        elif not transactions.saw_data(header):
            found = [
                (record.key, offset)
                for record in _records(segment, position, header, _unpack(segment, position, header, data))
                if record.key is not None and (offset := header.base_offset + record.offset_delta) >= first_dirty_offset
            ]
            # Always add the first batch, however large, or cleaning would never get past it.
            if offsets.latest_offset >= 0 and not offsets.has_room_for(len(found)):
                return False
            for key, offset in found:
                offsets.put(key, offset)
        offsets.latest_offset = header.last_offset
    return True


# --- rewriting


def clean_segments(
    disk: Disk,
    directory: str,
    segments: Sequence[SegmentRange],
    rules: Rules,
    transactions: CleanedTransactions,
) -> Cleaned | Damage:
    """Write one cleaned segment with the records to keep of several adjacent segments."""
    try:
        offsets = OffsetMap.load(disk.read_file(f"{directory}/{OFFSET_MAP}") or b"")
    except ValueError as error:
        raise HelperError(f"Cannot use {directory}/{OFFSET_MAP}, which was removed or changed: {error}") from None
    base_offset = segments[0].base_offset
    remove_cleaned(disk, directory, base_offset)
    target = _Target(disk, directory, base_offset, rules.index_interval_bytes)
    cleaning = _Cleaning(offsets, rules, transactions)
    try:
        for segment in segments:
            for position, header, data in _batches(disk, directory, segment):
                batch = cleaning.filter(segment, position, header, data)
                if batch is not None:
                    target.add(batch)
    except _DamageError as error:
        return error.damage
    size = target.finish()
    kept = transactions.take_kept()
    if kept:
        path = f"{directory}/{file_stem(base_offset)}{TRANSACTION_INDEX_SUFFIX}{CLEANED_SUFFIX}"
        index = disk.open(path, create=True)
        index.append(render_aborted(kept))
        index.sync()
    bytes_read = sum(segment.size for segment in segments)
    return Cleaned(size, bytes_read, cleaning.records_read, cleaning.records_kept, transactions)


def remove_cleaned(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove the files that an earlier attempt may have left of a cleaned segment."""
    Segment(disk, directory, base_offset, base_offset, suffix=CLEANED_SUFFIX).remove_files()


class _Target:
    """The segment being written, several batches at a time."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, index_interval: int) -> None:
        self._segment = Segment(disk, directory, base_offset, base_offset, create=True, suffix=CLEANED_SUFFIX)
        self._index_interval = index_interval
        self._segment.restart_indexes()
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0

    def add(self, batch: Buffer) -> None:
        position = self._segment.size + self._waiting_bytes
        self._segment.index_batch(position, read_header(batch), self._index_interval)
        self._waiting.append(batch)
        self._waiting_bytes += len(batch)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._segment.log.append(b"".join(self._waiting))
            self._waiting.clear()
            self._waiting_bytes = 0

    def finish(self) -> int:
        """Write the remaining batches and sync everything; returns the size of the log file."""
        self._write()
        self._segment.seal()
        self._segment.sync_files()
        return self._segment.size


class _Cleaning:
    """Decides on each batch of a log, in order."""

    def __init__(self, offsets: OffsetMap, rules: Rules, transactions: CleanedTransactions) -> None:
        self._offsets = offsets
        self._rules = rules
        self._transactions = transactions
        self.records_read = 0
        self.records_kept = 0

    def filter(self, segment: SegmentRange, position: int, header: BatchHeader, data: Buffer) -> Buffer | None:
        """What stays of a batch: all of it, a smaller one, an empty one, or nothing."""
        if header.is_control:
            body = _unpack(segment, position, header, data)
            may_go = _judged(segment, position, partial(self._transactions.saw_control, header, body))
            horizon = header.delete_horizon_ms
            is_discarded = may_go and horizon is not None and horizon <= self._rules.now_ms
        else:
            is_discarded = may_go = self._transactions.saw_data(header)
        self.records_read += header.record_count
        if is_discarded:
            return self._emptied(header, data)
        if header.is_control:
            return self._with_marker(segment, position, header, data, may_go)
        if header.base_offset > self._offsets.latest_offset:
            self.records_kept += header.record_count
            return data
        return self._with_newest(segment, position, header, data)

    def _emptied(self, header: BatchHeader, data: Buffer) -> Buffer | None:
        """What stays of a batch without records: its header, if a producer's state or the log end depends on it."""
        rules = self._rules
        last_offset, epoch = rules.producers.get(header.producer_id, (-2, -1))
        if last_offset == -1:
            is_last_of_producer = header.is_control and header.producer_epoch == epoch
        else:
            is_last_of_producer = header.last_offset == last_offset
        if header.next_offset != rules.end_offset and not (header.producer_id >= 0 and is_last_of_producer):
            return None
        return data if header.record_count == 0 else empty_batch(header)

    def _with_marker(
        self, segment: SegmentRange, position: int, header: BatchHeader, data: Buffer, may_go: bool
    ) -> Buffer | None:
        if header.record_count == 0:
            return self._emptied(header, data)
        self.records_kept += header.record_count
        if not may_go or header.delete_horizon_ms is not None:
            return data
        body = _unpack(segment, position, header, data)
        kept = list(_records(segment, position, header, body))
        return rebuild_batch(header, body, kept, self._rules.now_ms + self._rules.delete_retention_ms)

    def _with_newest(self, segment: SegmentRange, position: int, header: BatchHeader, data: Buffer) -> Buffer | None:
        horizon = header.delete_horizon_ms
        tombstones_stay = horizon is None or self._rules.now_ms < horizon
        offsets = self._offsets
        latest = offsets.latest_offset
        body = _unpack(segment, position, header, data)
        kept: list[RawRecord] = []
        has_tombstone = False
        for record in _records(segment, position, header, body):
            offset = header.base_offset + record.offset_delta
            if offset <= latest:
                # No later record can replace one without a key; Kafka drops it, too.
                if record.key is None or offset < offsets.get(record.key):
                    continue
                if not record.has_value and not tombstones_stay:
                    continue
            has_tombstone = has_tombstone or not record.has_value
            kept.append(record)
        if not kept:
            return self._emptied(header, data)
        self.records_kept += len(kept)
        needs_horizon = has_tombstone and horizon is None
        if len(kept) == header.record_count and not needs_horizon:
            return data
        new_horizon = self._rules.now_ms + self._rules.delete_retention_ms if needs_horizon else None
        return rebuild_batch(header, body, kept, new_horizon)


# --- reading what is there


def _batches(disk: Disk, directory: str, segment: SegmentRange) -> Iterator[tuple[int, BatchHeader, Buffer]]:
    """Each batch of a segment with its position, after a CRC check; _DamageError at the first bad batch."""
    log = disk.open(f"{directory}/{file_stem(segment.base_offset)}{LOG_SUFFIX}")
    size = log.size
    position = 0
    next_offset = segment.base_offset
    chunk, chunk_at = memoryview(b""), 0
    while position < size:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = memoryview(log.read(position, _READ_BYTES)), position
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            raise _damage(segment, position, "the file ends in the middle of a batch")
        header = read_header(chunk, at)
        if header.magic != MAGIC or not HEADER_BYTES <= header.size <= size - position:
            raise _damage(segment, position, f"no batch starts here (magic {header.magic}, {header.size} bytes)")
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise _damage(segment, position, f"offset {header.base_offset} comes after {next_offset - 1}")
        if at + header.size > len(chunk):
            chunk, chunk_at, at = memoryview(log.read(position, max(header.size, _READ_BYTES))), position, 0
        if not has_valid_crc(chunk, header, at):
            raise _damage(segment, position, "the CRC of the batch does not match")
        yield position, header, chunk[at : at + header.size]
        next_offset = header.next_offset
        position += header.size


def _unpack(segment: SegmentRange, position: int, header: BatchHeader, data: Buffer) -> bytes:
    return _judged(segment, position, lambda: unpack_records(data, header, _MAX_UNPACKED_BYTES))


def _judged(segment: SegmentRange, position: int, look: Callable[[], T]) -> T:
    """Read the inside of a batch; report any error as damage at its position."""
    try:
        return look()
    except KafkaError as error:
        raise _damage(segment, position, str(error), is_as_written=True) from None


def _records(segment: SegmentRange, position: int, header: BatchHeader, body: bytes) -> Iterator[RawRecord]:
    try:
        yield from find_records(body, header)
    except KafkaError as error:
        raise _damage(segment, position, str(error), is_as_written=True) from None


def _damage(segment: SegmentRange, position: int, reason: str, *, is_as_written: bool = False) -> _DamageError:
    return _DamageError(Damage(segment.base_offset, position, reason, is_as_written))
