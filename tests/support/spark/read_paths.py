"""Every path by which the records of a topic are read without a Spark session, and how much of a row each can give.

A path is a function from what was produced to rows, and a view of the rows that it is able to give: the data source has
times of microseconds, for example. A path leaves out the batches that nobody can decode. A further path is one more
entry in `PATHS`. No path waits for ever: a consumer has a deadline, and fails with what it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pandas
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, Filter

from tailrace.archive import header_names
from tailrace.archive.layout import TopicArchive
from tailrace.pipeline.archiving.task import Written
from tailrace.pipeline.replay.source import Span
from tailrace.pipeline.replay.tasks import read_span
from tailrace.pipeline.source.archived_ranges import ArchivedRange
from tailrace.pipeline.source.archived_reading import read_piece
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.fetching import FetchPlan
from tailrace.pipeline.source.options import ArchiveAccess
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.consumed_runs import Run, consume, consume_apart

Headers = tuple[tuple[bytes, bytes | None], ...]
#: What Spark's timestamps can hold, in milliseconds; times beyond are given as the nearest.
MOST_MS = (1 << 63) // 1000 - 1
_PATIENCE_SECONDS = 60


class Row(NamedTuple):
    """A record as it is compared."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Poison(NamedTuple):
    """An undecodable batch: its offsets from `first` up to `end` (exclusive), and its bytes as produced."""

    first: int
    end: int
    batch: bytes


@dataclass(frozen=True)
class Produced:
    """Records in their own topic, and the same records in one archive file."""

    broker: BrokerProcess
    topic: str
    #: The decodable ones, ordered by offset.
    rows: tuple[Row, ...]
    poison: tuple[Poison, ...]
    end: int
    file: Path
    written: Written
    archive: TopicArchive

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.topic, 0, 0, self.end)

    def runs(self) -> list[list[Row]]:
        """The rows between undecodable batches."""
        grouped = groupby(enumerate(self.rows), lambda each: each[1].offset - each[0])
        return [[row for _, row in run] for _, run in grouped]

    def corrupt_batch(self) -> str:
        """How a strict reader names the first undecodable batch."""
        first = self.poison[0]
        return f"the batch at offsets {first.first} to {first.end - 1} of {self.topic}-0 cannot be decoded: "

    def skipped_batches(self) -> list[str]:
        """What a lenient reader logs, up to the reason; empty if it skips nothing."""
        count = len(self.poison)
        if not count:
            return []
        batches = "1 batch" if count == 1 else f"{count} batches"
        count_of_offsets = sum(each.end - each.first for each in self.poison)
        what = f"{batches} of {count_of_offsets} offsets that cannot be decoded"
        places = ", ".join(f"{each.first} to {each.end - 1}" for each in self.poison[:5])
        more = ", …" if count > 5 else ""
        return [f"{self.topic}-0: skipped {what}, at offsets {places}{more} ("]


# --- the paths


def by_data_source(produced: Produced, *filters: Filter, strict: bool = False) -> list[Row]:
    given = {"kafka.bootstrap.servers": produced.broker.bootstrap, "subscribe": produced.topic}
    if not strict:
        given["failOnCorruptBatch"] = "false"
    reader: Any = TailraceSource(CaseInsensitiveDict(given)).reader(spark_schema(COLUMNS))
    list(reader.pushFilters(list(filters)))
    return rows_of(batch for part in reader.partitions() for batch in reader.read(part))


def by_data_source_from_files(produced: Produced, *, strict: bool = False) -> list[Row]:
    client = parse_client_settings({"bootstrap.servers": produced.broker.bootstrap})
    plan = FetchPlan(client, COLUMNS, RecordFilter(), True, _PATIENCE_SECONDS * 1000, fail_on_corrupt_batch=strict)
    piece = ArchivedRange(produced.offsets, produced.archive, (produced.written.file,), side_files_of(produced))
    return rows_of(read_piece(plan, ArchiveAccess(), piece))


def by_replay_from_files(produced: Produced, *, strict: bool = False) -> list[Row]:
    archive = produced.archive
    span = Span(
        produced.offsets,
        archive.uri,
        archive.directory,
        (produced.written.file,),
        produced.end,
        side_files_of(produced),
    )
    return rows_of(read_span(span, None, skips_corrupt=not strict))


def by_confluent(produced: Produced) -> list[Row]:
    """Names of headers are left out: librdkafka's Python has none that are not text."""
    bootstrap, topic = produced.broker.bootstrap, produced.topic
    if produced.poison:
        runs = [Run(run[0].offset, len(run)) for run in produced.runs()]
        return [Row(*each, ()) for each in consume_apart(bootstrap, topic, runs)]
    received = ConfluentClient(bootstrap).consumer()
    try:
        return [Row(*each, ()) for each in consume(received, topic, Run(0, len(produced.rows)))]
    finally:
        received.close()


def by_pandas(produced: Produced) -> list[Row]:
    frame = pandas.read_parquet(produced.file, partitioning=None)
    times = frame["timestamp"].astype("int64")
    return [
        Row(offset, time, key, value, header_names_of([(one["key"], one["value"]) for one in headers]))
        for offset, time, key, value, headers in zip(
            frame["offset"], times, frame["key"], frame["value"], frame["headers"], strict=True
        )
    ]


def by_duckdb(produced: Produced) -> list[Row]:
    """DuckDB's times are microseconds, and it says so where one is too far: such files are read without times."""
    query = 'SELECT "offset", {time}, key, value, headers FROM read_parquet(?, hive_partitioning = false) ORDER BY 1'
    if all(abs(row.timestamp_ms) <= MOST_MS for row in produced.rows):
        found = duckdb.execute(query.format(time='epoch_ms("timestamp")'), [str(produced.file)]).fetchall()
    else:
        with pytest.raises(duckdb.Error, match=r"(?i)timestamp"):
            duckdb.execute(query.format(time='epoch_ms("timestamp")'), [str(produced.file)]).fetchall()
        found = duckdb.execute(query.format(time="NULL"), [str(produced.file)]).fetchall()
        found = [(row[0], own.timestamp_ms, *row[2:]) for row, own in zip(found, produced.rows, strict=True)]
    return [
        Row(offset, time, key, value, header_names_of([(one["key"], one["value"]) for one in headers]))
        for offset, time, key, value, headers in found
    ]


def side_files_of(produced: Produced) -> tuple[Any, ...]:
    return () if produced.written.side_file is None else (produced.written.side_file,)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in _rows_of(batch)]


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for row, time_us in zip(batch.drop_columns("timestamp").to_pylist(), times, strict=True):
        headers = tuple((one["key"].encode(), one["value"]) for one in row["headers"] or ())
        yield Row(row["offset"], time_us // 1000, row["key"], row["value"], headers)


def header_names_of(stored: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Headers of a file with the names that were produced."""
    names = header_names.produced(pa.array([name for name, _ in stored], pa.string())).to_pylist()
    return tuple((name, value) for name, (_, value) in zip(names, stored, strict=True))


# --- how much of a row a path can give


def exactly(row: Row) -> Row:
    return row


def in_spark(row: Row) -> Row:
    """Times of microseconds, and names of headers as text."""
    headers = tuple((name.decode(errors="replace").encode(), value) for name, value in row.headers)
    return row._replace(timestamp_ms=max(-MOST_MS, min(MOST_MS, row.timestamp_ms)), headers=headers)


def without_headers(row: Row) -> Row:
    return row._replace(headers=())


class ReadPath(NamedTuple):
    """A way to read a topic."""

    read: Callable[[Produced], list[Row]]
    view: Callable[[Row], Row]
    #: The same, but failing at an undecodable batch; None if the path cannot notice one.
    strict: Callable[[Produced], list[Row]] | None = None


PATHS: dict[str, ReadPath] = {
    "the data source, from the log": ReadPath(
        by_data_source, in_spark, lambda produced: by_data_source(produced, strict=True)
    ),
    "the data source, from files": ReadPath(
        by_data_source_from_files, in_spark, lambda produced: by_data_source_from_files(produced, strict=True)
    ),
    "a replay, from files": ReadPath(
        by_replay_from_files, in_spark, lambda produced: by_replay_from_files(produced, strict=True)
    ),
    "confluent-kafka": ReadPath(by_confluent, without_headers),
    "pandas": ReadPath(by_pandas, exactly),
    "DuckDB": ReadPath(by_duckdb, exactly),
}
