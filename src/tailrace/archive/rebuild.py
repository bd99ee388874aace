"""Converts rows of an archive back into record batches that any Kafka client can read.

Offsets, timestamps and their type, leader epochs, keys, values and headers are those of the original. The original
grouping into batches and their compression are not kept. A batch ends with its last record. If offsets are missing, the
next batch starts after the gap; if nothing follows, `build_filler` fills the gap. All of this is done column by column,
because a Python loop over records would take a hundred times as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.archive import header_names
from tailrace.archive.parquet import LOG_APPEND_TIME, RECORD_SCHEMA
from tailrace.model import NO_LEADER_EPOCH, NO_TIMESTAMP
from tailrace.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    build_header,
)
from tailrace.records.compression import Compression, compress

BATCH_BYTES = 1 << 20
_MAX_DELTA = 2**31 - 1
_INT64_MAX = 2**63 - 1

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Rebuilt(NamedTuple):
    """Batches one after another, and the number of rows in them."""

    data: bytes
    rows: int


def rebuild(
    records: pa.Table,
    max_bytes: int,
    *,
    batch_bytes: int = BATCH_BYTES,
    compression: Compression = Compression.NONE,
) -> Rebuilt:
    """As many rows as fit into `max_bytes` before compression, at least one, as batches."""
    if records.num_rows == 0:
        return Rebuilt(b"", 0)
    columns = _Columns(records)
    sizes = columns.largest_sizes()
    starts = _starts_of_batches(columns, sizes, batch_bytes)
    rows = _rows_within(starts, sizes, max_bytes)
    if rows < columns.rows:
        columns = _Columns(records.slice(0, rows))
        starts = starts[starts < rows]
    return Rebuilt(_build(columns, starts, compression), rows)


def build_filler(first_offset: int, last_offset: int) -> bytes:
    """A batch that tells a consumer that a range of offsets (inclusive) is empty.

    It is a control batch with one marker at the last offset: no client delivers it, and every client continues after
    it, while some clients retry for ever after a batch without records.
    """
    batches: list[bytes] = []
    while first_offset <= last_offset:
        delta = min(last_offset - first_offset, _MAX_DELTA)
        # A COMMIT marker: the versions of key and value are 0, as is the coordinator epoch.
        key, value = b"\0\0\0\1", bytes(6)
        body = b"\0" + _varint(0) + _varint(delta) + _varint(len(key)) + key + _varint(len(value)) + value + _varint(0)
        section = _varint(len(body)) + body
        header = build_header(
            section,
            1,
            base_offset=first_offset,
            last_offset_delta=delta,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            leader_epoch=NO_LEADER_EPOCH,
            attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
        )
        batches += header, section
        first_offset += delta + 1
    return b"".join(batches)


def _varint(number: int) -> bytes:
    matrix, lengths = _varints(np.array([number], np.int64))
    return bytes(matrix[0, : lengths[0]])


class _Columns:
    """Rows as arrays without chunks, and the encoded headers."""

    def __init__(self, records: pa.Table) -> None:
        # Use the archive's own schema, however the table was made.
        table = records.select(RECORD_SCHEMA.names).combine_chunks()
        self.rows = table.num_rows
        self.offsets = _numbers(table.column("offset"), np.int64)
        self.timestamps = _numbers(table.column("timestamp").cast(pa.int64()), np.int64)
        self.types = _numbers(table.column("timestamp_type"), np.int32)
        self.epochs = _numbers(table.column("leader_epoch"), np.int32)
        self.keys = _one_chunk(table.column("key"))
        self.values = _one_chunk(table.column("value"))
        self.key_lengths = _lengths(self.keys)
        self.value_lengths = _lengths(self.values)
        self.header_counts, self.headers = _encode_headers(_one_chunk(table.column("headers")))
        #: Whether times are so far apart that their difference exceeds 64 bits.
        self.is_extreme = int(self.timestamps.max()) - int(self.timestamps.min()) > _INT64_MAX

    def largest_sizes(self) -> _Numbers:
        """An upper bound for each record's size, whichever batch it ends up in."""
        span = 0 if self.is_extreme else int(self.timestamps.max()) - int(self.timestamps.min())
        distance = min(int(self.offsets[-1] - self.offsets[0]), _MAX_DELTA)
        bounds = _varint_lengths(np.array([span, distance], np.int64))
        body = np.maximum(self.key_lengths, 0) + np.maximum(self.value_lengths, 0)
        if self.headers is not None:
            body = body + _lengths(self.headers)
        lengths = (
            _varint_lengths(self.key_lengths)
            + _varint_lengths(self.value_lengths)
            + _varint_lengths(self.header_counts)
        )
        inner: _Numbers = body + lengths + (1 + int(bounds.sum()))
        return inner + _varint_lengths(inner)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _numbers(column: pa.ChunkedArray, kind: type[np.generic]) -> _Numbers:
    return np.asarray(_one_chunk(column).to_numpy(zero_copy_only=False), kind)


def _lengths(array: pa.Array) -> _Numbers:
    """The length of each byte string, -1 for null."""
    lengths = pc.fill_null(pc.binary_length(array), -1)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _encode_headers(headers: pa.Array) -> tuple[_Numbers, pa.Array | None]:
    """The number of headers of each record, and their encoded bytes; None if no record has any."""
    bounds = np.asarray(headers.offsets.to_numpy(), np.int64)
    counts = np.diff(bounds)
    first, last = int(bounds[0]), int(bounds[-1])
    if first == last:
        return counts, None
    names, contents = headers.values.slice(first, last - first).flatten()
    names = header_names.produced(names)
    name_lengths, content_lengths = _lengths(names), _lengths(contents)
    encoded = pc.binary_join_element_wise(
        _binary([_varints(name_lengths)]),
        names,
        _binary([_varints(content_lengths)]),
        contents,
        pa.scalar(b"", pa.binary()),
        null_handling="replace",
        null_replacement=b"",
    )
    # The headers of a record are adjacent, so its encoded headers are one run of bytes.
    ends = np.frombuffer(encoded.buffers()[1], np.int32, len(encoded) + 1, encoded.offset * 4)
    offsets = np.ascontiguousarray(ends[bounds - first])
    return counts, pa.Array.from_buffers(pa.binary(), len(headers), [None, pa.py_buffer(offsets), encoded.buffers()[2]])


def _zigzag(numbers: _Numbers) -> _Numbers:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _varint_lengths(numbers: _Numbers) -> _Numbers:
    raw = _zigzag(numbers)
    lengths = np.ones(len(raw), np.int64)
    largest = int(raw.max()) if len(raw) else 0
    shift = 7
    while largest >> shift:
        lengths += raw >= np.uint64(1 << shift)
        shift += 7
    return lengths


def _varints(numbers: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Encode numbers as in records: a row of bytes for each number, and its length."""
    raw = _zigzag(numbers)
    lengths = _varint_lengths(numbers)
    width = int(lengths.max()) if len(lengths) else 1
    matrix = np.empty((len(raw), width), np.uint8)
    for index in range(width):
        piece = (raw >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
        matrix[:, index] = piece | ((lengths > index + 1).astype(np.uint8) << 7)
    return matrix, lengths


def _binary(pieces: list[tuple[_Numbers, _Numbers]]) -> pa.Array:
    """An array of byte strings: for each row, its pieces joined."""
    rows = len(pieces[0][1])
    matrix = np.concatenate([piece for piece, _ in pieces], axis=1)
    mask = np.concatenate([np.arange(piece.shape[1]) < lengths[:, None] for piece, lengths in pieces], axis=1)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(sum(lengths for _, lengths in pieces), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(matrix[mask])])


def _starts_of_batches(columns: _Columns, sizes: _Numbers, batch_bytes: int) -> _Numbers:
    """Where batches start: what a header says must hold for all of its records, and no batch may be too large."""
    rows, offsets, times, types = columns.rows, columns.offsets, columns.timestamps, columns.types
    changes = (columns.epochs[1:] != columns.epochs[:-1]) | (types[1:] != types[:-1])
    # With LogAppendTime one time applies to all records of a batch.
    changes |= (types[1:] == LOG_APPEND_TIME) & (times[1:] != times[:-1])
    if columns.is_extreme:
        changes |= True
    stops = [*(np.flatnonzero(changes) + 1).tolist(), rows]
    totals = np.cumsum(sizes)
    starts: list[int] = []
    start = 0
    for stop in stops:
        while start < stop:
            starts.append(start)
            before = int(totals[start - 1]) if start else 0
            by_size = int(np.searchsorted(totals, before + batch_bytes, side="right"))
            by_offset = int(np.searchsorted(offsets, int(offsets[start]) + _MAX_DELTA, side="right"))
            start = min(stop, max(start + 1, by_size), by_offset)
    return np.array(starts, np.int64)


def _rows_within(starts: _Numbers, sizes: _Numbers, max_bytes: int) -> int:
    grown = sizes.copy()
    grown[starts] += HEADER_BYTES
    return max(1, int(np.searchsorted(np.cumsum(grown), max_bytes, side="right")))


def _build(columns: _Columns, starts: _Numbers, compression: Compression) -> bytes:
    rows = columns.rows
    counts = np.diff(np.append(starts, rows))
    offset_deltas = columns.offsets - np.repeat(columns.offsets[starts], counts)
    timestamp_deltas = columns.timestamps - np.repeat(columns.timestamps[starts], counts)
    bounds, section = _encode_records(columns, offset_deltas, timestamp_deltas)
    latest = np.maximum.reduceat(columns.timestamps, starts)
    pieces: list[bytes | memoryview] = []
    for start, count, max_timestamp in zip(starts.tolist(), counts.tolist(), latest.tolist(), strict=True):
        body: bytes | memoryview = section[bounds[start] : bounds[start + count]]
        if compression is not Compression.NONE:
            body = compress(compression, body)
        is_append_time = columns.types[start] == LOG_APPEND_TIME
        header = build_header(
            body,
            count,
            base_offset=int(columns.offsets[start]),
            last_offset_delta=int(offset_deltas[start + count - 1]),
            base_timestamp=int(columns.timestamps[start]),
            max_timestamp=max_timestamp,
            leader_epoch=int(columns.epochs[start]),
            attributes=compression | (LOG_APPEND_TIME_BIT if is_append_time else 0),
        )
        pieces += header, body
    return b"".join(pieces)


def _encode_records(
    columns: _Columns, offset_deltas: _Numbers, timestamp_deltas: _Numbers
) -> tuple[_Numbers, memoryview]:
    """All records one after another, and the start of each, followed by the end."""
    times, offsets = _varints(timestamp_deltas), _varints(offset_deltas)
    key_lengths, value_lengths = _varints(columns.key_lengths), _varints(columns.value_lengths)
    header_counts = _varints(columns.header_counts)
    inner = 1 + times[1] + offsets[1] + key_lengths[1] + value_lengths[1] + header_counts[1]
    inner += np.maximum(columns.key_lengths, 0) + np.maximum(columns.value_lengths, 0)
    if columns.headers is not None:
        inner += _lengths(columns.headers)
    attributes = np.zeros((columns.rows, 1), np.uint8), np.ones(columns.rows, np.int64)
    parts = [
        _binary([_varints(inner), attributes, times, offsets, key_lengths]),
        columns.keys,
        _binary([value_lengths]),
        columns.values,
        _binary([header_counts]),
    ]
    if columns.headers is not None:
        parts.append(columns.headers)
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )
    bounds = np.frombuffer(joined.buffers()[1], np.int32, columns.rows + 1, joined.offset * 4)
    return bounds, memoryview(joined.buffers()[2])
