"""Archive and log are one table: what was produced is what a query sees, each offset once, wherever it is.

The brokers have given up most of what is archived, so that what is read from files could not come from their logs. What
is planned, and what a task does when files change under it, is asked of the reader itself, as Spark would ask it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, Filter, GreaterThanOrEqual, LessThan

from tailrace.archive.location import open_location
from tailrace.archive.manifest import load_snapshot, write_manifest
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.archive.scan import Wanted, scan_files
from tailrace.cli.spark_progress import ProgressLine
from tailrace.cli.sql import reading_of, run
from tailrace.client.archive import commit, describe
from tailrace.pipeline.failures import DataLossError, OptionError, SourceError
from tailrace.pipeline.source.archived_ranges import ArchivedRange, Piece
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.reader import TopicReader
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tailrace.pipeline.sql.queries import TopicQuery
from tests.support.archives.archived_topics import (
    FIRST_TIME,
    RETENTION_CHECK_MS,
    archived_configs,
    local_start,
    some_records,
)
from tests.support.archives.archiver import archive_up_to
from tests.support.archives.data_file import write_file
from tests.support.archives.s3_process import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.spark.spark import started
from tests.support.topics import create_topic, eventually

TOPIC = "history"
RECORDS = 3_000
ARCHIVED = 2_500
#: The second partition is so small that its leader keeps all of it.
FEW = 400
ROWS_PER_FILE = 500
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ALL_COLUMNS = tuple(RECORD_SCHEMA.names)


@dataclass(frozen=True)
class Archived:
    """A broker with a topic of which the first part is in the archive alone."""

    broker: BrokerProcess
    place: Path
    records: list[Record]

    def reader(self, topic: str = TOPIC, *filters: Filter, **options: str) -> TopicReader:
        """A reader as Spark makes one, with filters that were pushed down."""
        given = {"kafka.bootstrap.servers": self.broker.bootstrap, "subscribe": topic, **options}
        reader = TailraceSource(CaseInsensitiveDict(given)).reader(spark_schema(COLUMNS))
        assert isinstance(reader, TopicReader)
        list(reader.pushFilters(list(filters)))
        return reader


def pieces_of(reader: TopicReader) -> list[Piece]:
    return [partition.value for partition in reader.partitions()]


def files_of(pieces: list[Piece]) -> list[tuple[int, int]]:
    """The first offsets of the planned files, each with its partition."""
    return [
        (file.partition, file.first_offset)
        for piece in pieces
        if isinstance(piece, ArchivedRange)
        for file in piece.files
    ]


def offsets_of(reader: TopicReader, partitions: list[Any] | None = None) -> list[tuple[int, int]]:
    return [
        (partition, offset)
        for task in (reader.partitions() if partitions is None else partitions)
        for batch in reader.read(task)
        for partition, offset in zip(
            batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
    ]


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    place = tmp_path_factory.mktemp("archive")
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS}
    with BrokerProcess(tmp_path_factory.mktemp("archived") / "data", config=config) as broker:
        archived = Archived(broker, place, some_records(RECORDS))
        fill(archived, TOPIC, partitions=2)
        yield archived


def fill(archived: Archived, topic: str, partitions: int = 1) -> None:
    """Produce records, archive most of them, and wait until the broker has deleted what it may."""
    bootstrap = archived.broker.bootstrap
    create_topic(bootstrap, topic, partitions=partitions, **archived_configs(archived.place))
    ConfluentClient(bootstrap).produce(topic, archived.records)
    ends = {0: ARCHIVED}
    if partitions > 1:
        ConfluentClient(bootstrap).produce(topic, [one._replace(partition=1) for one in archived.records[:FEW]])
        ends[1] = FEW // 2
    archive_up_to(bootstrap, topic, {0: ARCHIVED // 2}, rows_per_file=ROWS_PER_FILE)
    archive_up_to(bootstrap, topic, ends, rows_per_file=ROWS_PER_FILE)
    assert eventually(lambda: local_start(bootstrap, topic) > ARCHIVED // 2, timeout_seconds=120)


@pytest.fixture
def read(spark: SparkSession, archived: Archived) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": archived.broker.bootstrap, "subscribe": TOPIC, **options}
        return spark.read.format("tailrace").options(**given).load()

    return load


def test_every_record_is_read_once_with_all_it_carries_from_files_and_log(
    read: Callable[..., DataFrame], archived: Archived
) -> None:
    rows = read(includeHeaders="true", minPartitions="7").collect()
    found = {(row.partition, row.offset): row for row in rows}
    assert len(rows) == len(found) == RECORDS + FEW
    for (_, offset), row in found.items():
        record = archived.records[offset]
        headers = None if row.headers is None else tuple((name, value) for name, value in row.headers)
        assert (row.topic, row.timestampType, headers) == (TOPIC, 0, record.headers or None)
        assert (row.key, row.value) == (record.key, record.value)
        assert row.timestamp.astimezone(UTC) == datetime.fromtimestamp(FIRST_TIME / 1000 + offset, UTC)
    # Only through the brokers, which read the same files themselves, the table is the same.
    key = ("partition", "offset")
    by_brokers = read(includeHeaders="true", **{"tailrace.archive": "never"}).orderBy(*key).collect()
    assert by_brokers == sorted(rows, key=lambda row: (row.partition, row.offset))


def test_files_are_read_where_the_log_is_gone_and_the_log_for_the_rest(archived: Archived) -> None:
    pieces = pieces_of(archived.reader())
    assert files_of(pieces) == [(0, first) for first in (0, 500, 1000, 1250, 1750, 2250)]
    # Few records that the leader's log still has are read from there.
    assert [piece for piece in pieces if isinstance(piece, OffsetRange)] == [
        OffsetRange(TOPIC, 0, ARCHIVED, RECORDS),
        OffsetRange(TOPIC, 1, 0, FEW),
    ]
    assert files_of(pieces_of(archived.reader(**{"tailrace.archive": "never"}))) == []


def test_brokers_may_take_their_time_to_read_the_archive(archived: Archived) -> None:
    # A broker answers at once that there is nothing yet, again and again, until it has read the files.
    hasty = {"tailrace.archive": "never", "kafka.fetch.max.wait.ms": "0", "kafka.retry.backoff.ms": "1"}
    assert offsets_of(archived.reader(TOPIC, EqualTo(("partition",), 0), **hasty)) == [
        (0, offset) for offset in range(RECORDS)
    ]


def time_of(offset: int) -> datetime:
    return datetime.fromtimestamp(FIRST_TIME / 1000 + offset, UTC)


@pytest.mark.parametrize(
    ("filters", "files", "offsets"),
    [
        ((GreaterThanOrEqual(("offset",), 600), LessThan(("offset",), 700)), [500], range(600, 700)),
        # Some later records may still be in the log, depending on how batches fill segments.
        ((EqualTo(("timestamp",), time_of(1200)),), [1000], range(1200, 1201)),
        ((LessThan(("timestamp",), time_of(3)),), [0], range(3)),
        ((GreaterThanOrEqual(("timestamp",), time_of(ARCHIVED)),), [], range(ARCHIVED, RECORDS)),
    ],
)
def test_filters_choose_files(
    archived: Archived, filters: tuple[Filter, ...], files: list[int], offsets: range
) -> None:
    reader = archived.reader(TOPIC, EqualTo(("partition",), 0), *filters)
    assert [first for _, first in files_of(pieces_of(reader))] == files
    assert [offset for _, offset in offsets_of(reader)] == list(offsets)


def test_a_query_in_sql_sees_all_of_history_and_reads_the_files_that_it_needs(
    spark: SparkSession, archived: Archived, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = reading_of(
        archived.broker.bootstrap, formats=((None, "text"),), schemas=(), start="earliest", end="latest"
    )
    capsys.readouterr()
    run(spark, f"SELECT count(*) AS n FROM {TOPIC}", reading, [TOPIC], ProgressLine("", shown=False), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"n": RECORDS + FEW}
    where = "_partition = 0 AND _offset BETWEEN 598 AND 601"
    some = TopicQuery(spark, f"SELECT _offset FROM {TOPIC} WHERE {where}", reading, [TOPIC]).frame()
    some.sparkSession.conf.set(PUSHDOWN, "true")  # which the command always sets
    assert sorted(row[0] for row in some.collect()) == [598, 599, 600, 601]
    # Without the condition it would be one task for the files, and one for each of the two logs.
    assert some.rdd.getNumPartitions() == 1


def test_a_stream_reads_history_from_files_and_goes_on_in_the_log(
    spark: SparkSession, archived: Archived, tmp_path: Path
) -> None:
    topic = "streamed"
    fill(archived, topic)
    options = {
        "kafka.bootstrap.servers": archived.broker.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1300",
    }
    output, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")

    def catch_up() -> list[int]:
        stream = spark.readStream.format("tailrace").options(**options).load().select("offset")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        started(lambda: writer.trigger(availableNow=True).start(output)).awaitTermination()
        return sorted(row.offset for row in spark.read.parquet(output).collect())

    assert catch_up() == list(range(RECORDS))
    ConfluentClient(archived.broker.bootstrap).produce(topic, archived.records[:50])
    assert catch_up() == list(range(RECORDS + 50))


def merge_files(archived: Archived, topic: str, starts: dict[int, int] | None = None) -> None:
    """Merge all files of partition 0, as compaction does, and delete the old ones at once."""
    bootstrap = archived.broker.bootstrap
    status = describe(bootstrap, topic)
    location = open_location(status.uri)
    snapshot = load_snapshot(location, status.archive)
    files = snapshot.partition(0).files
    first = min(starts.values()) if starts else files[0].first_offset
    wanted = Wanted(first, ARCHIVED, ALL_COLUMNS)
    rows = [scanned.table for scanned in scan_files(location, snapshot.directory, files, wanted)]
    merged = write_file(location, topic, status.lineage, 0, (first, ARCHIVED), rows)
    manifest = snapshot.commit([merged], [file.name for file in files], starts)
    commit(bootstrap, status, write_manifest(location, manifest), manifest.partitions)
    for file in files:
        location.delete(f"{snapshot.directory}/{file.name}")


def test_files_that_compaction_takes_away_while_a_query_runs_are_found_again(archived: Archived) -> None:
    topic = "merged"
    fill(archived, topic)
    reader = archived.reader(topic)
    archived_task, log_task = reader.partitions()
    assert len(files_of([archived_task.value])) == 6
    batches = reader.read(archived_task)
    seen = next(batches).column("offset").to_pylist()
    merge_files(archived, topic)
    for batch in batches:
        seen += batch.column("offset").to_pylist()
    assert seen == list(range(ARCHIVED))
    # A task that only begins now finds none of the planned files.
    assert offsets_of(reader, [archived_task, log_task]) == [(0, offset) for offset in range(RECORDS)]
    assert len(files_of(pieces_of(reader))) == 1


def test_what_expires_while_a_query_runs_is_lost_data(archived: Archived) -> None:
    topic = "expired"
    fill(archived, topic)
    strict, lenient = archived.reader(topic), archived.reader(topic, failOnDataLoss="false")
    tasks = strict.partitions()
    merge_files(archived, topic, {0: 1200})
    with pytest.raises(DataLossError, match=f"offsets 0 to 1199 of {topic}-0 are lost: the log begins at 1200"):
        offsets_of(strict, tasks)
    assert offsets_of(lenient, tasks) == [(0, offset) for offset in range(1200, RECORDS)]


def test_what_files_cannot_give_is_asked_of_the_brokers_or_said(
    archived: Archived, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = archived.reader(**{"tailrace.archive.uri": str(tmp_path / "not-mounted")})
    assert files_of(pieces_of(gone)) == []
    assert "asking brokers instead: the archive's directory" in caplog.text
    assert len(set(offsets_of(gone))) == RECORDS + FEW

    damaged = tmp_path / "damaged"
    shutil.copytree(archived.place, damaged)
    directory = damaged / describe(archived.broker.bootstrap, TOPIC).archive.directory
    (path,) = directory.glob(f"partition=0/{500:020d}-*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    altered = archived.reader(**{"tailrace.archive.uri": str(damaged)})
    with pytest.raises(SourceError, match=f"damaged, and brokers no longer have offset 500 .*verify {TOPIC}"):
        offsets_of(altered)
    path.unlink()
    with pytest.raises(SourceError, match=r"damaged, and brokers no longer have offset 500 .* is missing\."):
        offsets_of(altered)

    wrong = archived.reader(**{"tailrace.archive.uri": "s3://history", "tailrace.archive.secret": "x"})
    with pytest.raises(OptionError, match=r"'tailrace.archive.\*': .* has the unknown option 'secret'"):
        wrong.partitions()


def test_a_place_is_reached_with_the_options_of_the_query(
    archived: Archived, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with S3Server(tmp_path) as store:
        store.create_bucket("history")
        options = {
            "uri": "s3://history/queue",
            "endpoint_override": store.endpoint,
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
        given = {f"tailrace.archive.{name}": value for name, value in options.items()}
        bucket = open_location(options.pop("uri"), options)
        directory = describe(archived.broker.bootstrap, TOPIC).archive.directory
        for entry in open_location(str(archived.place)).list(directory):
            bucket.write_new(entry.name, (archived.place / entry.name).read_bytes())
        reader = archived.reader(TOPIC, LessThan(("offset",), 1300), EqualTo(("partition",), 0), **given)
        assert [first for _, first in files_of(pieces_of(reader))] == [0, 500, 1000, 1250]
        assert [offset for _, offset in offsets_of(reader)] == list(range(1300))
        assert not caplog.records
        given["tailrace.archive.secret_key"] = "wrong"
        denied = archived.reader(TOPIC, LessThan(("offset",), 10), EqualTo(("partition",), 0), **given)
        assert [offset for _, offset in offsets_of(denied)] == list(range(10))
        assert "asking brokers instead: access to s3://history/queue: " in caplog.text
