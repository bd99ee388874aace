"""The tasks of a replay: each reads one span of a partition from front to back, and writes it to the target.

One task has a partition's whole span, so that its records stay in order. Spark calls these functions with Arrow
batches; without a filter between reading and writing, records never leave the Python worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tailrace.archive.location import open_location
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.archive.scan import Wanted, scan_files
from tailrace.model import TopicPartition
from tailrace.pipeline.arrow.record_encoding import RowError
from tailrace.pipeline.failures import DataLossError
from tailrace.pipeline.replay.source import Span
from tailrace.pipeline.sink.columns import WriteColumns
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.pipeline.sink.topic_writing import write_rows
from tailrace.pipeline.source.archived_reading import header_column_of
from tailrace.pipeline.source.client_settings import ClientSettings
from tailrace.pipeline.source.corrupt_batches import CorruptBatches
from tailrace.pipeline.source.fetching import FetchPlan, read_range
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import COLUMNS, HEADERS, arrow_schema

#: The written columns of a record, in this order, and its origin for error messages.
WRITTEN_COLUMNS = ("key", "value", HEADERS, "partition", "timestamp", "offset")
RESULT_SCHEMA = pa.schema([("records", pa.int64()), ("oldest_ms", pa.int64())])

_POLL_TIMEOUT_MS = 120_000
_MS_TO_US = 1000
#: The time farthest from 1970 that still fits microseconds.
_MOST_MS = (1 << 63) // 1000 - 1


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads spans: Spark passes the number of one."""

    spans: Sequence[Span]
    client: ClientSettings | None
    skips_corrupt: bool = False

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_span(self.spans[number], self.client, skips_corrupt=self.skips_corrupt)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes records of `WRITTEN_COLUMNS`; returns their number and the age of the oldest."""

    topic: str
    settings: WriteSettings
    by_key: bool
    keeps_times: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = WriteColumns(
            key=0,
            value=1,
            headers=2,
            partition=None if self.by_key else 3,
            timestamp=4 if self.keeps_times else None,
        )
        oldest = _Oldest()
        records = write_rows(oldest.watch(self._checked(batches)), columns, self.settings)
        yield pa.RecordBatch.from_pydict({"records": [records], "oldest_ms": [oldest.ms]}, RESULT_SCHEMA)

    def _checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            keys = batch.column(0)
            if self.by_key and keys.null_count:
                row = int(np.argmax(keys.is_null().to_numpy(zero_copy_only=False)))
                where = f"offset {batch.column(5)[row]} of partition {batch.column(3)[row]}"
                raise RowError(
                    f"the record at {where} has no key, but partitions of topic '{self.topic}' are chosen by key, "
                    "so its order would be lost; skip such records with --where 'key IS NOT NULL', or replay "
                    "into a topic with as many partitions"
                )
            yield batch


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Reads and writes in one step."""

    read: ReadTask
    write: WriteTask

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.write(batch.select(list(WRITTEN_COLUMNS)) for batch in self.read(numbers))


class _Oldest:
    """The oldest time of the records that pass."""

    def __init__(self) -> None:
        self.ms: int | None = None

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            times = batch.column(WRITTEN_COLUMNS.index("timestamp")).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            oldest = int(times.to_numpy(zero_copy_only=False).min()) // _MS_TO_US
            self.ms = oldest if self.ms is None else min(self.ms, oldest)
            yield batch


def read_span(span: Span, client: ClientSettings | None, *, skips_corrupt: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the records of a span with all columns of a topic, by offset: from files, then from the brokers."""
    wanted = span.range
    if span.files:
        location = open_location(span.archive_uri)
        try:
            skipped = CorruptBatches(replace(wanted, end=span.archived_end), fail=not skips_corrupt)
            skipped.meet_quarantined(location, span.directory, span.side_files)
            inside = Wanted(wanted.start, span.archived_end, tuple(RECORD_SCHEMA.names))
            for rows in scan_files(location, span.directory, span.files, inside):
                yield _as_topic_has_it(rows.table, wanted)
        finally:
            location.close()
    start = max(wanted.start, span.archived_end)
    if start >= wanted.end:
        return
    if client is None:
        name = TopicPartition(wanted.topic, wanted.partition)
        raise RowError(f"offsets {start} to {wanted.end - 1} of {name} are not in the archive")
    plan = FetchPlan(client, COLUMNS, RecordFilter(), True, _POLL_TIMEOUT_MS, not skips_corrupt)
    try:
        yield from read_range(plan, replace(wanted, start=start))
    except DataLossError as error:
        what = str(error).partition(". To go on")[0]
        raise DataLossError(f"{what}. To replay what is left, start over with another range") from None


def _as_topic_has_it(table: pa.Table, wanted: OffsetRange) -> pa.RecordBatch:
    """Convert records of an archive to the names and types of a topic's columns."""
    schema = arrow_schema(COLUMNS)
    times_ms = table.column("timestamp").cast(pa.int64()).to_numpy()
    columns = {
        "key": table.column("key"),
        "value": table.column("value"),
        "topic": pa.repeat(pa.scalar(wanted.topic), table.num_rows),
        "partition": pa.repeat(pa.scalar(wanted.partition, pa.int32()), table.num_rows),
        "offset": table.column("offset"),
        "timestamp": pa.array(np.clip(times_ms, -_MOST_MS, _MOST_MS) * _MS_TO_US).cast(schema.field("timestamp").type),
        "timestampType": table.column("timestamp_type"),
        HEADERS: pa.chunked_array([header_column_of(chunk) for chunk in table.column("headers").chunks]),
    }
    (batch,) = pa.table(columns, schema=schema).combine_chunks().to_batches()
    return batch
