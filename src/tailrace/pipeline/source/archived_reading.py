"""Reads the records of one range of offsets from the files of an archive, as Arrow batches like those from a log.

An archive may change after a query was planned: files are merged, or expire. If a file is gone, the newest manifest
shows where its unread offsets are now; so every offset is read once, whatever happens meanwhile. Brokers serve what
files cannot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.archive import header_names
from tailrace.archive.errors import ArchiveError, FileMissingError
from tailrace.archive.location import open_location
from tailrace.archive.scan import Wanted, scan_files
from tailrace.model import TopicPartition
from tailrace.pipeline.arrow.columns import build_number_column, build_text_column
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import CorruptBatchError, DataLossError, SourceError
from tailrace.pipeline.source.archived_ranges import ArchivedRange, Piece, plan_pieces
from tailrace.pipeline.source.archives import Archives
from tailrace.pipeline.source.corrupt_batches import CorruptBatches
from tailrace.pipeline.source.fetching import FetchPlan, read_range
from tailrace.pipeline.source.options import ArchiveAccess
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.schema import HEADERS, arrow_schema

#: The columns in files for a topic's columns; those that are the same for a whole range are not read.
_IN_FILES = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    HEADERS: "headers",
}
_MS_TO_US = 1000
#: The largest time that fits microseconds, in milliseconds.
_MOST_MS = (1 << 63) // 1000 - 1
#: How often to look at the archive again: a broker may learn of a new manifest later than others.
_TRIES_FOR_A_FILE = 10


def read_piece(plan: FetchPlan, access: ArchiveAccess, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task's piece."""
    if isinstance(piece, OffsetRange):
        yield from read_range(plan, piece)
        return
    at = piece.offsets.start
    try:
        for batch, after in _read_files(plan, access, piece):
            # Before the batch is yielded: the caller may not come back.
            at = after
            yield batch
        return
    except ArchiveError as error:
        problem = error
    yield from _read_on(plan, access, piece, replace(piece.offsets, start=at), problem)


def _read_files(plan: FetchPlan, access: ArchiveAccess, piece: ArchivedRange) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches, each with the offset to continue from after it."""
    offsets = piece.offsets
    columns = tuple(_IN_FILES[name] for name in plan.columns if name in _IN_FILES)
    wanted = Wanted(offsets.start, offsets.end, columns, plan.only.times_ms)
    location = open_location(piece.archive.uri, dict(access.location_options))
    try:
        skipped = CorruptBatches(offsets, fail=plan.fail_on_corrupt_batch)
        skipped.meet_quarantined(location, piece.archive.directory, piece.side_files)
        for table, after in scan_files(location, piece.archive.directory, piece.files, wanted):
            yield batch_of(table, offsets, plan.columns), min(after, offsets.end)
    finally:
        location.close()


def _read_on(
    plan: FetchPlan, access: ArchiveAccess, before: ArchivedRange, rest: OffsetRange, problem: ArchiveError
) -> Iterator[pa.RecordBatch]:
    """Read the rest of a range after a file could not be read."""
    brokers = Brokers(plan.client, reached=True)
    try:
        archives = Archives(brokers, access)
        pieces = None
        if isinstance(problem, FileMissingError):
            pieces = _look_again(plan, archives, before, rest)
        if pieces is None:
            archives.leave_to_brokers([rest], problem)
    finally:
        brokers.close()
    if pieces is not None:
        for piece in pieces:
            yield from read_piece(plan, access, piece)
        return
    try:
        yield from read_range(plan, rest)
    except (DataLossError, CorruptBatchError):
        raise
    except SourceError as error:
        raise SourceError(f"{problem}; reading from the brokers failed too: {error}") from None


def _look_again(plan: FetchPlan, archives: Archives, before: ArchivedRange, rest: OffsetRange) -> list[Piece] | None:
    """Return where the rest of a range is now; None if that has not changed."""
    for _ in range(_TRIES_FOR_A_FILE):
        parts = archives.parts([rest], {rest.topic: before.archive.lineage})
        part = parts.get(TopicPartition(rest.topic, rest.partition))
        if part is None or part.archive.manifest != before.archive.manifest:
            return plan_pieces([rest], parts, plan.only.times_ms)
        time.sleep(plan.client.cluster.retry_backoff_ms / 1000)
    return None


def batch_of(table: pa.Table, offsets: OffsetRange, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return rows of a file as the data source passes them to Spark."""
    count = table.num_rows
    built = []
    for name in columns:
        if name == "topic":
            built.append(build_text_column(offsets.topic, count))
        elif name == "partition":
            built.append(build_number_column(np.full(count, offsets.partition, dtype=np.int32), pa.int32()))
        else:
            built.append(_column(name, _in_one(table.column(_IN_FILES[name]))))
    return pa.RecordBatch.from_arrays(built, schema=arrow_schema(columns))


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _column(name: str, values: pa.Array) -> pa.Array:
    if name == "timestamp":
        times = np.clip(values.cast(pa.int64()).to_numpy(), -_MOST_MS, _MOST_MS) * _MS_TO_US
        return build_number_column(times, pa.timestamp("us", tz="UTC"))
    if name == HEADERS:
        return header_column_of(values)
    return values


def header_column_of(headers: pa.Array) -> pa.Array:
    """Return the headers of a file as a query of a log has them: readable names, and null for a record without any."""
    kind = arrow_schema((HEADERS,)).field(HEADERS).type
    bounds = headers.offsets
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    names, values = headers.values.slice(first, last - first).flatten()
    pairs = pa.StructArray.from_arrays(
        [header_names.readable(header_names.produced(names)), values], fields=list(kind.value_type)
    )
    offsets = pc.subtract(bounds, pa.scalar(first, bounds.type))
    return pa.ListArray.from_arrays(offsets, pairs, type=kind, mask=pc.equal(pc.list_value_length(headers), 0))
