"""Encodes rows of Arrow columns as the records of batches, a whole column at a time.

A record is the join of five pieces: everything before the key, the key, the value's length, the value, the headers.
numpy makes the small pieces and Arrow joins them, so that Python touches no row. The records of one call are contiguous
in one buffer; a batch is a range of it. This module must not know topics, brokers or Spark.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from tailrace.pipeline.failures import SourceError
from tailrace.records.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES

Numbers = npt.NDArray[np.int64]

#: All variable pieces are joined with this type: 64-bit offsets cannot overflow, whatever Spark's batches contain.
BYTES = pa.large_binary()

_pack_start = struct.Struct(">qiibI").pack
_pack_counted = struct.Struct(">hiqqqhii").pack
_NO_LEADER_EPOCH = -1
_COUNTED_HEADER_BYTES = HEADER_BYTES - PREFIX_BYTES
#: No number here needs more bytes: lengths are below 2^31, and times are close to each other.
_VARINT_BYTES = 5
#: The most bytes of a record beside key, value and headers: attributes, the header count, and five numbers.
RECORD_OVERHEAD_BYTES = 5 * _VARINT_BYTES + 2
#: How far a record's time may be from its batch's, in milliseconds, so that the number has that length.
MAX_TIME_DELTA_MS = (1 << (7 * _VARINT_BYTES - 1)) - 1


class RowError(SourceError):
    """A row has values that a record cannot have; the message says which column and why."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of future records: `key` and `headers` may be missing; headers are already encoded, with their count."""

    value: pa.Array
    key: pa.Array | None = None
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.value)

    def take(self, indices: npt.NDArray[Any]) -> Rows:
        """Return the rows at these positions, in their order."""
        chosen = pa.array(indices)
        return Rows(
            *(None if column is None else column.take(chosen) for column in (self.value, self.key, self.headers))
        )

    def size_bounds(self) -> Numbers:
        """Return an upper bound for the bytes of each row's record."""
        sizes = np.maximum(byte_lengths(self.value), 0) + RECORD_OVERHEAD_BYTES
        if self.key is not None:
            sizes += np.maximum(byte_lengths(self.key), 0)
        if self.headers is not None:
            sizes += byte_lengths(self.headers)
        return sizes


@dataclass(frozen=True, slots=True)
class Records:
    """Encoded records, back to back; `starts` has one number more than there are records."""

    data: memoryview
    starts: Numbers

    def section(self, first: int, end: int) -> memoryview:
        """Return the bytes of the records from `first` to `end` (exclusive)."""
        return self.data[int(self.starts[first]) : int(self.starts[end])]


def as_bytes(column: pa.Array) -> pa.Array:
    """Convert a column of strings or bytes to bytes with 64-bit offsets, without copying the content."""
    return column if column.type == BYTES else column.cast(BYTES)


def byte_lengths(column: pa.Array) -> Numbers:
    """Return the length of each value in bytes, -1 for null."""
    lengths = np.diff(_offsets(column))
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def encode_records(rows: Rows, deltas: Numbers, time_deltas: Numbers | None = None) -> Records:
    """Encode each row with its offset delta in its batch; without time deltas, all have the batch's time."""
    values = byte_lengths(rows.value)
    keys = np.full(len(rows), -1, np.int64) if rows.key is None else byte_lengths(rows.key)
    headers = 1 if rows.headers is None else byte_lengths(rows.headers)
    times = 1 if time_deltas is None else varint_sizes(time_deltas)
    lengths = (
        (1 + times + varint_sizes(deltas) + varint_sizes(keys) + varint_sizes(values))
        + (np.maximum(keys, 0) + np.maximum(values, 0))
        + headers
    )
    # Between them are the record's attributes, which are unused, and its time relative to the batch.
    time = (b"\0\0",) if time_deltas is None else (b"\0", time_deltas)
    pieces = [varints(lengths, *time, deltas, keys)]
    if rows.key is not None:
        pieces.append(rows.key)
    pieces += [varints(values), rows.value, pa.scalar(b"\0", BYTES) if rows.headers is None else rows.headers]
    joined = join(*pieces)
    return Records(memoryview(joined.buffers()[2] or b""), _offsets(joined))


def encode_headers(column: pa.Array) -> pa.Array:
    """Encode lists of (name, content) as at the end of each record: their count, then each with its lengths."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = column.flatten()
    names, contents = (as_bytes(field) for field in entries.flatten())
    if entries.null_count or names.null_count:
        raise RowError("a row has a header without a name; each element of the column 'headers' needs a 'key'")
    if not len(entries):
        return varints(counts)
    joined = join(varints(byte_lengths(names)), names, varints(byte_lengths(contents)), contents)
    ends = np.concatenate(([0], np.cumsum(counts)))
    of_rows = pa.Array.from_buffers(
        BYTES, len(counts), [None, pa.py_buffer(np.ascontiguousarray(_offsets(joined)[ends])), joined.buffers()[2]]
    )
    return join(varints(counts), of_rows)


def join(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    """Join the pieces of each row; a null piece adds nothing."""
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", BYTES), null_handling="replace", null_replacement="")


def varint_sizes(numbers: Numbers) -> Numbers:
    """Return the number of bytes of each number."""
    zigzag = (numbers << 1) ^ (numbers >> 63)
    sizes = np.ones(len(numbers), np.int64)
    largest = int(zigzag.max(initial=0))
    for place in range(1, _VARINT_BYTES):
        if largest < 1 << (7 * place):
            break
        sizes += zigzag >= 1 << (7 * place)
    return sizes


def varints(*columns: Numbers | bytes) -> pa.Array:
    """Encode the numbers of each row one after the other, as in records; bytes are the same in every row."""
    count = next(len(column) for column in columns if not isinstance(column, bytes))
    offsets = np.zeros(count + 1, np.int64)
    sizes = [np.ones(0, np.int64) if isinstance(column, bytes) else varint_sizes(column) for column in columns]
    widths = [
        len(column) if isinstance(column, bytes) else int(size.max(initial=1))
        for column, size in zip(columns, sizes, strict=True)
    ]
    cells = np.empty((count, sum(widths)), np.uint8)
    used = np.ones(cells.shape, np.bool_)
    lengths = offsets[1:]
    at = 0
    for column, size, width in zip(columns, sizes, widths, strict=True):
        if isinstance(column, bytes):
            cells[:, at : at + width] = np.frombuffer(column, np.uint8)
            lengths += width
        else:
            _fill(cells[:, at : at + width], used[:, at : at + width], column, size)
            lengths += size
        at += width
    np.cumsum(lengths, out=lengths)
    data = cells if offsets[-1] == cells.size else cells[used]
    return pa.Array.from_buffers(BYTES, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _fill(cells: npt.NDArray[np.uint8], used: npt.NDArray[np.bool_], numbers: Numbers, sizes: Numbers) -> None:
    """Write each number into its row from the left, and mark the bytes that it uses."""
    rest = (numbers << 1) ^ (numbers >> 63)
    for place in range(cells.shape[1]):
        is_last = place + 1 == cells.shape[1]
        cells[:, place] = rest if is_last else (rest & 0x7F) | ((sizes > place + 1) << 7)
        if place:
            used[:, place] = sizes > place
        if not is_last:
            rest >>= 7


def batch_header(
    section: memoryview | bytes,
    count: int,
    *,
    attributes: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """Return the header, including the CRC, that makes a batch of a records section."""
    latest_ms = timestamp_ms if max_timestamp_ms is None else max_timestamp_ms
    counted = _pack_counted(
        attributes, count - 1, timestamp_ms, latest_ms, producer_id, producer_epoch, base_sequence, count
    )
    crc = crc32c(section, crc32c(counted))
    return _pack_start(0, _COUNTED_HEADER_BYTES + len(section), _NO_LEADER_EPOCH, MAGIC, crc) + counted


def _offsets(column: pa.Array) -> Numbers:
    """Return where each value of a column with 64-bit offsets begins, and where the last one ends."""
    buffer = column.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(column) + 1, np.int64)
    return np.frombuffer(buffer, np.int64, len(column) + 1, column.offset * 8)
