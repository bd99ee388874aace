"""Whatever records are produced, every path gives the same rows: a plain reading in Python says which.

A path is a function from what was produced to rows, and a view of the rows that it is able to give: the data source has
times of microseconds, for example, and Spark has text for the names of headers. A further path, or a further kind of
record, is one more entry in `PATHS` or in `RECORDS`. The quick paths take many examples, those through Spark a few.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import duckdb
import pandas
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, Filter, GreaterThanOrEqual, LessThan

from tailrace.archive import header_names
from tailrace.archive.location import open_location
from tailrace.archive.scan import Wanted, scan_file
from tailrace.cli.sql import reading_of
from tailrace.pipeline.archiving.plan import Piece
from tailrace.pipeline.archiving.task import FileTask, Written, write_file
from tailrace.pipeline.source.archived_reading import batch_of
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tailrace.pipeline.sql.queries import TopicQuery
from tests.support.batches.raw_records import RawRecord, produce
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.topics import create_topic

Headers = tuple[tuple[bytes, bytes | None], ...]
#: What Spark's timestamps can hold, in milliseconds; times beyond are given as the nearest.
MOST_MS = (1 << 63) // 1000 - 1
#: The 15th of October 1582.
GREGORIAN_MS = -12_219_292_800_000
NOON_MS = 1_767_268_800_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ANY_TIME = str((1 << 63) - 1)

# --- what is produced

TIMES = st.one_of(
    st.sampled_from([-1, 0, NOON_MS, 253_402_300_800_000, -62_135_596_800_001, 1 << 61, -(1 << 61)]),
    st.integers(NOON_MS - 5000, NOON_MS + 5000),
)
NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
FIELDS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.lists(st.integers(0, 9), max_size=2),
    st.fixed_dictionaries({"x": st.integers(0, 9)}),
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(["n", "m"]), FIELDS).map(lambda value: json.dumps(value).encode())
NO_OBJECTS = st.sampled_from([b"", b"5", b'"n"', b"null", b'[{"n": 1}, {"n": 2}]', b"{", b"\xff\xfe", b"n/a"])
VALUES = st.one_of(st.none(), OBJECTS, OBJECTS, NO_OBJECTS, st.just(b'{"n": "' + b"x" * 300_000 + b'"}'))
NAMES = st.one_of(st.sampled_from([b"trace", b"", b"\xff", header_names.MARK.encode()]), st.binary(max_size=3))
RECORDS = st.builds(
    RawRecord,
    value=VALUES,
    key=st.none() | st.binary(max_size=4),
    headers=st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    timestamp_ms=TIMES,
)
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=5), min_size=1, max_size=4)
WINDOWS = st.tuples(st.integers(NOON_MS - 5000, NOON_MS + 5000), st.integers(0, 5000))


#: One of each kind, so that they are there however few examples are tried.
ODD_BATCHES = [
    [RawRecord(b'{"n": %d}' % number, timestamp_ms=NOON_MS + 1000 * number) for number in range(3)],
    [
        RawRecord(b'{"n": 1.5, "m": [1]}', b"k", ((b"\xff", b"v"), (b"trace", None)), NOON_MS + 1_800_000),
        RawRecord(b'{"n": "text", "m": {"x": 1}}', None, ((header_names.MARK.encode(), b""),), -1),
        RawRecord(None, b"gone", (), -86_400_000),
        RawRecord(b'[{"n": 1}, {"n": 2}]', timestamp_ms=NOON_MS - 1),
        RawRecord(b'{"n": "' + b"x" * 300_000 + b'"}', timestamp_ms=253_402_300_800_000),
    ],
    [RawRecord(b"\xff\xfe", timestamp_ms=NOON_MS + 500), RawRecord(b"5"), RawRecord(b"{}"), RawRecord(b"")],
]
FAR_TIMES = [[RawRecord(b"{}", timestamp_ms=time) for time in (1 << 61, NOON_MS, -(1 << 61), -1, -62_135_596_800_001)]]


class Row(NamedTuple):
    """A record as it is compared."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True)
class Produced:
    """Records in a topic of their own, and the same records in one file of an archive."""

    broker: BrokerProcess
    topic: str
    rows: tuple[Row, ...]
    file: Path
    written: Written
    directory: Path


# --- paths without Spark


def by_data_source(produced: Produced, *filters: Filter) -> list[Row]:
    given = {"kafka.bootstrap.servers": produced.broker.bootstrap, "subscribe": produced.topic}
    reader: Any = TailraceSource(CaseInsensitiveDict(given)).reader(spark_schema(COLUMNS))
    list(reader.pushFilters(list(filters)))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in rows_of(batch)]


def by_data_source_from_files(produced: Produced) -> list[Row]:
    wanted = OffsetRange(produced.topic, 0, 0, len(produced.rows))
    names = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
    location = open_location(str(produced.directory))
    tables = scan_file(location, str(produced.file.parent.parent.relative_to(produced.directory)),
                       produced.written.file, Wanted(0, wanted.end, names))  # fmt: skip
    return [row for table in tables for row in rows_of(batch_of(table, wanted, COLUMNS))]


def by_confluent(produced: Produced) -> list[Row]:
    """Names of headers are left out: librdkafka's Python has none that are not text."""
    found = ConfluentClient(produced.broker.bootstrap).consumer()
    try:
        found.assign([TopicPartition(produced.topic, 0, 0)])
        messages: list[Any] = []
        while len(messages) < len(produced.rows):
            messages += found.consume(len(produced.rows) - len(messages), timeout=60)
    finally:
        found.close()
    return [Row(each.offset(), each.timestamp()[1], each.key(), each.value(), ()) for each in messages]


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


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for row, time in zip(batch.drop_columns("timestamp").to_pylist(), times, strict=True):
        headers = tuple((one["key"].encode(), one["value"]) for one in row["headers"] or ())
        yield Row(row["offset"], time // 1000, row["key"], row["value"], headers)


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


PATHS: dict[str, tuple[Callable[[Produced], list[Row]], Callable[[Row], Row]]] = {
    "the data source, from the log": (by_data_source, in_spark),
    "the data source, from files": (by_data_source_from_files, in_spark),
    "confluent-kafka": (by_confluent, without_headers),
    "pandas": (by_pandas, exactly),
    "DuckDB": (by_duckdb, exactly),
}

_numbers = itertools.count()


def produced_by(broker: BrokerProcess, directory: Path, batches: Sequence[Sequence[RawRecord]]) -> Produced:
    topic = f"any-records-{next(_numbers)}"
    create_topic(broker.bootstrap, topic, message_timestamp_after_max_ms=ANY_TIME)
    for batch in batches:
        produce(broker.port, topic, batch)
    records = [record for batch in batches for record in batch]
    rows = tuple(
        Row(offset, record.timestamp_ms, record.key, record.value, record.headers)
        for offset, record in enumerate(records)
    )
    place = directory / topic
    place.mkdir()
    client = parse_client_settings({"bootstrap.servers": broker.bootstrap})
    piece = Piece(topic, 0, 0, 0, len(rows), 1 << 30, 0.0)
    written = write_file(FileTask(client, str(place), uuid4(), piece))
    assert isinstance(written, Written), written
    (file,) = place.rglob("*.parquet")
    return Produced(broker, topic, rows, file, written, place)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any-records")


SOME = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEW = settings(SOME, max_examples=1)


@SOME
@example(batches=ODD_BATCHES, window=(NOON_MS, 1000))
@example(batches=FAR_TIMES, window=(NOON_MS, 1000))
@given(batches=BATCHES, window=WINDOWS)
def test_every_path_gives_the_records_that_were_produced(
    broker: BrokerProcess, directory: Path, batches: list[list[RawRecord]], window: tuple[int, int]
) -> None:
    produced = produced_by(broker, directory, batches)
    for name, (path, view) in PATHS.items():
        assert path(produced) == [view(row) for row in produced.rows], name
    low, high = window[0], window[0] + window[1]
    found = by_data_source(
        produced, GreaterThanOrEqual(("timestamp",), moment(low)), LessThan(("timestamp",), moment(high))
    )
    assert found == [in_spark(row) for row in produced.rows if low <= row.timestamp_ms < high]


def moment(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp_ms)


# --- paths through Spark


@FEW
@example(batches=ODD_BATCHES, window=(NOON_MS, 1000))
@given(batches=st.lists(st.lists(RECORDS, min_size=4, max_size=8), min_size=4, max_size=6), window=WINDOWS)
def test_spark_gives_the_records_that_were_produced_and_no_silent_null(
    spark: SparkSession,
    broker: BrokerProcess,
    directory: Path,
    batches: list[list[RawRecord]],
    window: tuple[int, int],
) -> None:
    produced = produced_by(broker, directory, batches)
    expected = [in_spark(row) for row in produced.rows]
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": produced.topic, "includeHeaders": "true"}
    assert spark_rows(spark.read.format("tailrace").options(**options).load()) == expected
    if all(GREGORIAN_MS <= row.timestamp_ms <= MOST_MS for row in produced.rows):
        # The connector counts earlier days by the Julian calendar, and overflows where a time is further away.
        assert spark_rows(spark.read.format("kafka").options(**options).load()) == expected

    low, high = window[0], window[0] + window[1]
    inside = replace(produced, rows=tuple(row for row in produced.rows if low <= row.timestamp_ms < high))
    for chosen, start, end in ((produced, "earliest", "latest"), (inside, low, high)):
        reading = reading_of(broker.bootstrap, ((None, "json"),), (), start, end)
        query = TopicQuery(spark, f"SELECT * FROM `{produced.topic}` ORDER BY _offset", reading, [produced.topic])
        frame = query.frame()
        frame.sparkSession.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        fields = [name for name in ("n", "m") if name in frame.columns]
        seen = frame.selectExpr("_offset", "_value", "_corrupt", *(f"{name} IS NOT NULL AS {name}" for name in fields))
        rows = [row.asDict() for row in seen.orderBy("_offset").collect()]
        assert [(row["_offset"], as_bytes(row["_value"])) for row in rows] == [
            (row.offset, row.value) for row in chosen.rows
        ]
        for row in rows:
            plain = plain_object(as_bytes(row["_value"]))
            assert (row["_corrupt"] is None) == (plain is not None), row
            for name in ("n", "m"):
                assert row.get(name, False) == (plain is not None and plain.get(name) is not None), row


def spark_rows(frame: DataFrame) -> list[Row]:
    chosen = frame.selectExpr("offset", "unix_millis(timestamp) AS time", "key", "value", "headers")
    return [
        Row(
            row.offset,
            row.time,
            as_bytes(row.key),
            as_bytes(row.value),
            tuple((one.key.encode(), as_bytes(one.value)) for one in row.headers or ()),
        )
        for row in chosen.orderBy("offset").collect()
    ]


def as_bytes(content: bytearray | bytes | None) -> bytes | None:
    return None if content is None else bytes(content)


def plain_object(value: bytes | None) -> dict[str, Any] | None:
    """The fields of a value, none where it is null, and None where it is something else."""
    if value is None:
        return {}
    try:
        content = json.loads(value.decode())
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
