"""Record batches as Arrow: from a broker's bytes to columns, without a Python object for any record.

One Python loop steps from record to record, because only the length of one says where the next begins. numpy does the
rest for many records at once, and Arrow gathers keys and values. Bytes are untrusted: every position is checked against
the end of its record before it is used. An invalid batch is passed to a callback, or is a CorruptBatchError that names
it; the batches around it are decoded nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tailrace.errors import KafkaError
from tailrace.pipeline.arrow.columns import build_binary_column, build_number_column, build_text_column, corrupt
from tailrace.pipeline.arrow.varints import Numbers, read_varints
from tailrace.pipeline.failures import CorruptRecordsError
from tailrace.pipeline.source.corrupt_batches import corrupt_batch
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import HEADERS, arrow_schema
from tailrace.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    BatchHeader,
    has_valid_crc,
    read_header,
)

#: The bytes of records in one Arrow batch: enough to make the costs per batch negligible, and few enough that Spark
#: works on one while the next is decoded.
CHUNK_BYTES = 2 << 20
#: Columns that topics have in an archive but not in Spark: the exact time, and the epoch of the leader that appended
#: it.
TIMESTAMP_MS = "timestampMs"
LEADER_EPOCH = "leaderEpoch"
_ABORT_MARKER = 0
_MS_TO_US = 1000
#: The time farthest from 1970 that still fits microseconds; brokers do not check this when records are produced.
_MOST_MS = (1 << 63) // 1000 - 1
#: The length of a record takes at most five bytes.
_MAX_LENGTH_SHIFT = 28

#: Takes a batch that cannot be decoded: its header, its bytes, and the reason.
BatchTaker: TypeAlias = Callable[[BatchHeader, memoryview, str], None]
_Batches: TypeAlias = Sequence[tuple[BatchHeader, int]]


class RecordDecoder:
    """Converts what is fetched of one range of offsets to Arrow batches, and tracks its progress."""

    def __init__(
        self,
        wanted: OffsetRange,
        columns: tuple[str, ...],
        only: RecordFilter,
        schema: pa.Schema | None = None,
        take_corrupt: BatchTaker | None = None,
    ) -> None:
        """Take columns of a topic in Spark, or their names and types elsewhere according to `schema`.

        `take_corrupt` is called in the order of offsets, between the records before and behind a batch.
        """
        self.next_offset = wanted.start
        #: Records before it are skipped, even if a batch has them.
        self._first = wanted.start
        self._range = wanted
        self._only = only
        self._columns = columns
        self._schema = arrow_schema(columns) if schema is None else schema
        self._names: Any = None
        self._take_corrupt = take_corrupt

    def skip_to(self, offset: int) -> None:
        """Continue at an offset, which may be inside a batch whose first records were deleted."""
        self.next_offset = self._first = offset

    def decode(
        self, data: bytearray, at: int, end: int, aborted: Iterable[tuple[int, int]] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records between two positions; `aborted` has producers and first offsets of transactions."""
        # What an archive returns may end anywhere, and the next batch of the log may begin before that.
        self._first = max(self._first, self.next_offset)
        transactions = _AbortedTransactions(aborted)
        chunk = _Chunk(data)
        batches: list[tuple[BatchHeader, int]] = []
        while at + HEADER_BYTES <= end:
            header = read_header(data, at)
            size = header.size
            if header.magic != MAGIC:
                raise corrupt(self._range, f"a batch has the format {header.magic}, expected {MAGIC}")
            if size < HEADER_BYTES:
                raise corrupt(self._range, f"a batch has only {size} bytes")
            if at + size > end:  # brokers truncate responses at a number of bytes
                break
            if header.base_offset >= self._range.end:
                self.next_offset = max(self.next_offset, self._range.end)
                break
            if header.last_offset_delta < 0 or header.record_count < 0:
                raise corrupt(self._range, f"the batch at offset {header.base_offset} has an impossible header")
            is_sound = True
            if header.next_offset > self.next_offset:
                if not has_valid_crc(data, header, at):
                    raise corrupt(self._range, f"the CRC of the batch at offset {header.base_offset} does not match")
                if transactions.takes(data, header, at) and header.record_count:
                    batches.append((header, at))
                    try:
                        chunk.add(header, at)
                    except (KafkaError, IndexError):
                        is_sound = False
            self.next_offset = max(self.next_offset, header.next_offset)
            at += size
            if not is_sound or chunk.size >= CHUNK_BYTES:
                yield from self._finish(data, batches, chunk if is_sound else None)
                chunk, batches = _Chunk(data), []
        yield from self._finish(data, batches, chunk)

    def _finish(self, data: bytearray, batches: _Batches, chunk: _Chunk | None) -> Iterator[pa.RecordBatch]:
        """Return the Arrow batch of a chunk; if that fails, those of its decodable batches."""
        built = None
        if chunk is not None:
            try:
                built = self._build(chunk)
            except CorruptRecordsError:
                chunk = None
        if chunk is None:
            yield from self._decode_apart(data, batches)
        elif built is not None:
            yield built

    def _decode_apart(self, data: bytearray, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Decode batches of which at least one is corrupt: half by half, until it is found."""
        built, problem = None, None
        chunk = _Chunk(data)
        try:
            for header, at in batches:
                chunk.add(header, at)
            built = self._build(chunk)
        except (KafkaError, IndexError, CorruptRecordsError) as error:
            problem = error
        if built is not None:
            yield built
        if problem is None:
            return
        if len(batches) == 1:
            reason = problem.why if isinstance(problem, CorruptRecordsError) else str(problem)
            self._refuse(data, *batches[0], reason)
            return
        middle = len(batches) // 2
        yield from self._decode_apart(data, batches[:middle])
        yield from self._decode_apart(data, batches[middle:])

    def _refuse(self, data: bytearray, header: BatchHeader, at: int, reason: str) -> None:
        if self._take_corrupt is None:
            raise corrupt_batch(self._range, header, reason)
        self._take_corrupt(header, memoryview(data)[at : at + header.size], reason)

    def _build(self, chunk: _Chunk) -> pa.RecordBatch | None:
        """Return the Arrow batch of a chunk, if anything of it is wanted."""
        if not chunk.starts:
            return None
        data = chunk.bytes_array()
        counts = np.array(chunk.counts)
        lengths, starts = read_varints(data, np.fromiter(chunk.starts, np.int64, len(chunk.starts)))
        ends = starts + lengths
        self._check(lengths >= 0)
        deltas, at = read_varints(data, starts + 1)  # after the attributes, which are unused
        offsets, at = read_varints(data, at)
        self._check(at < ends)
        base_offsets, batch_ends = np.array(chunk.base_offsets), np.cumsum(counts)
        offsets += np.repeat(base_offsets, counts)
        self._check(offsets[1:] > offsets[:-1])
        self._check(offsets[batch_ends - counts] >= base_offsets)
        self._check(offsets[batch_ends - 1] <= np.array(chunk.last_offsets))
        first = int(np.searchsorted(offsets, self._first))
        last = int(np.searchsorted(offsets, self._range.end))
        rows: slice | Numbers = slice(first, last)
        times = None
        if "timestamp" in self._columns or self._only.has_times:
            times = np.clip(chunk.times(counts, deltas), -_MOST_MS, _MOST_MS) * _MS_TO_US
            if self._only.has_times:
                inside = (times >= self._only.min_timestamp_us) & (times <= self._only.max_timestamp_us)
                inside[:first] = inside[last:] = False
                rows = np.flatnonzero(inside)
        count = offsets[rows].size
        if not count:
            return None
        built: dict[str, pa.Array] = {}
        if "offset" in self._columns:
            built["offset"] = build_number_column(offsets[rows], pa.int64())
        if times is not None and "timestamp" in self._columns:
            built["timestamp"] = build_number_column(times[rows], pa.timestamp("us", tz="UTC"))
        if TIMESTAMP_MS in self._columns:
            built[TIMESTAMP_MS] = build_number_column(chunk.times(counts, deltas)[rows], pa.timestamp("ms", tz="UTC"))
        if LEADER_EPOCH in self._columns:
            epochs = np.repeat(np.array(chunk.leader_epochs, dtype=np.int32), counts)
            built[LEADER_EPOCH] = build_number_column(epochs[rows], pa.int32())
        if "timestampType" in self._columns:
            kinds = np.repeat(np.array(chunk.append_times, dtype=np.int32), counts)
            built["timestampType"] = build_number_column(kinds[rows], pa.int32())
        if "partition" in self._columns:
            built["partition"] = build_number_column(np.full(count, self._range.partition, dtype=np.int32), pa.int32())
        if "topic" in self._columns:
            built["topic"] = self._topic_column(count)
        if not {"key", "value", HEADERS}.isdisjoint(self._columns):
            self._build_contents(built, chunk.buffer(), data, at[rows], ends[rows])
        return pa.RecordBatch.from_arrays([built[name] for name in self._columns], schema=self._schema)

    def _build_contents(
        self, built: dict[str, pa.Array], buffer: pa.Buffer, data: Any, at: Numbers, ends: Numbers
    ) -> None:
        """Build keys, values and headers, which follow each other."""
        lengths, at = read_varints(data, at)
        self._check(at <= ends)
        after = at + np.maximum(lengths, 0)
        self._check(after < ends)
        if "key" in self._columns:
            built["key"] = build_binary_column(buffer, at, lengths)
        if "value" not in self._columns and HEADERS not in self._columns:
            return
        lengths, at = read_varints(data, after)
        self._check(at <= ends)
        after = at + np.maximum(lengths, 0)
        self._check(after < ends)
        if "value" in self._columns:
            built["value"] = build_binary_column(buffer, at, lengths)
        if HEADERS in self._columns:
            from tailrace.pipeline.arrow.header_column import build_header_column

            field = self._schema.field(self._columns.index(HEADERS))
            built[HEADERS] = build_header_column(self._range, field, buffer, data, after, ends)

    def _topic_column(self, count: int) -> pa.Array:
        if self._names is None or len(self._names) < count:
            self._names = build_text_column(self._range.topic, count + count // 4)
        return self._names.slice(0, count)

    def _check(self, holds: Any) -> None:
        if not holds.all():
            raise corrupt(self._range, "the length of a record is wrong, or its offset is impossible")


class _Chunk:
    """Batches that become one Arrow batch: the positions of their records, and data from their headers."""

    def __init__(self, data: bytearray) -> None:
        self.size = 0
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.base_offsets: list[int] = []
        self.last_offsets: list[int] = []
        #: The base time of the records, or the time that all of them have.
        self.base_timestamps: list[int] = []
        self.append_times: list[bool] = []
        self.leader_epochs: list[int] = []
        self._data = data
        #: Decompressed records, batch after batch; empty until a batch is compressed.
        self._unpacked: bytearray | None = None

    def add(self, header: BatchHeader, position: int) -> None:
        """Find the records of a batch; if there are none, KafkaError or IndexError, and the chunk is unusable."""
        body: bytes | bytearray
        if not header.compression and self._unpacked is None:
            body, at, end = self._data, position + HEADER_BYTES, position + header.size
        else:
            from tailrace.records.compression import decompress

            self._unpack_so_far(position)
            assert self._unpacked is not None
            at = len(self._unpacked)
            packed = memoryview(self._data)[position + HEADER_BYTES : position + header.size]
            self._unpacked += decompress(header.compression, packed)
            body, end = self._unpacked, len(self._unpacked)
        if header.record_count > end - at:
            raise IndexError("it has more records than bytes")
        find_records(body, at, end, header.record_count, self.starts)
        self.size += end - at
        self.counts.append(header.record_count)
        self.base_offsets.append(header.base_offset)
        self.last_offsets.append(header.last_offset)
        self.leader_epochs.append(header.leader_epoch)
        is_append_time = bool(header.attributes & LOG_APPEND_TIME_BIT)
        self.append_times.append(is_append_time)
        self.base_timestamps.append(header.max_timestamp if is_append_time else header.base_timestamp)

    def _unpack_so_far(self, position: int) -> None:
        """Start a buffer for decompressed records, with the uncompressed ones before them."""
        if self._unpacked is not None:
            return
        if not self.starts:
            self._unpacked = bytearray()
            return
        first = self.starts[0]
        self._unpacked = self._data[first:position]
        self.starts = [start - first for start in self.starts]

    def times(self, counts: Numbers, deltas: Numbers) -> Numbers:
        """Return the time of each record in milliseconds."""
        times: Numbers = np.repeat(np.array(self.base_timestamps), counts)
        times += np.where(np.repeat(np.array(self.append_times), counts), 0, deltas)
        return times

    def buffer(self) -> pa.Buffer:
        """Return the bytes of the records, for Arrow."""
        return pa.py_buffer(self._data if self._unpacked is None else self._unpacked)

    def bytes_array(self) -> Any:
        """Return the same bytes, for numpy."""
        return np.frombuffer(self._data if self._unpacked is None else self._unpacked, dtype=np.uint8)


def find_records(body: bytes | bytearray, at: int, end: int, count: int, found: list[int]) -> None:
    """Add the positions of `count` records that fill the bytes between two positions; IndexError otherwise."""
    append = found.append
    last_size = 0
    while count:
        append(at)
        start = at
        length = body[at]
        at += 1
        if length > 127:
            second = body[at]
            at += 1
            length += (second - 1) << 7
            shift = 14
            while second > 127:
                if shift > _MAX_LENGTH_SHIFT:
                    raise IndexError("a record has an impossible length")
                length -= 1 << shift
                second = body[at]
                at += 1
                length += second << shift
                shift += 7
        head = at - start
        at += length >> 1
        count -= 1
        size = at - start
        if size == last_size:
            more = _count_equal(body, body[start : start + head], at, size, min(count, (end - at) // size))
            found.extend(range(at, at + more * size, size))
            at += more * size
            count -= more
        last_size = size
    if at != end:
        raise IndexError("its records do not fill it")


def _count_equal(body: bytes | bytearray, head: bytes | bytearray, at: int, size: int, most: int) -> int:
    """Count how many of the next records begin with the same bytes, so that all have the length of the previous one.

    Records of equal size are common, and comparing every `size`-th byte is far cheaper than stepping from record to
    record.
    """
    counted = 0
    window = 16
    while counted < most:
        goal = min(most, counted + window)
        same = goal - counted
        for place, byte in enumerate(head):
            column = body[at + counted * size + place : at + goal * size : size]
            same = min(same, len(column) - len(column.lstrip(bytes((byte,)))))
        counted += same
        if counted < goal:
            break
        window *= 4
    return counted


class _AbortedTransactions:
    """The batches of a response that belong to aborted transactions."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._pending = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._aborting: set[int] = set()

    def takes(self, data: bytearray, header: BatchHeader, at: int) -> bool:
        """True if a batch has records for a reader: it is not a marker, and not part of an aborted transaction."""
        while self._pending and self._pending[-1][1] <= header.last_offset:
            self._aborting.add(self._pending.pop()[0])
        if header.is_control:
            if self._aborting and _is_abort_marker(data, header, at):
                self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def _is_abort_marker(data: bytearray, header: BatchHeader, at: int) -> bool:
    from tailrace.records.record import iterate_records

    for record in iterate_records(data, header, at):
        return record.key is not None and int.from_bytes(record.key[2:4], "big") == _ABORT_MARKER
    return False
