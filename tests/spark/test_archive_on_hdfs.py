"""The whole of archiving on HDFS: one real name node and data node, one broker, one topic through all that Spark does.

The command archives it in many small files, the broker gives up what is archived, and Kafka clients, queries,
compaction and replay then find on HDFS what was produced. Whether files were read by a query itself or by the broker
for it is told by what the broker counts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.archive.location import open_location
from tailrace.archive.manifest import Snapshot, load_snapshot
from tailrace.client.archive import describe
from tailrace.pipeline.archiving.archiver import group_of
from tailrace.pipeline.archiving.compacting import Compaction, CompactionReport, CompactionSettings
from tailrace.pipeline.archiving.compaction_tasks import merger_on
from tailrace.pipeline.jobs.run import Stop
from tailrace.pipeline.replay.plan import Replay
from tailrace.pipeline.replay.replaying import ReplayedBatch, prepare, run_replay
from tailrace.pipeline.source.archived_ranges import ArchivedRange
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.reader import TopicReader
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tests.support.archives.archived_topics import (
    RETENTION_CHECK_MS,
    archived_configs,
    assert_is_what_was_sent,
    some_records,
)
from tests.support.archives.archiving import verified
from tests.support.archives.hdfs_process import HdfsServer
from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.brokers.scrape import Scrape
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Received, Record
from tests.support.spark.job_run import JobProcess
from tests.support.topics import create_topic, eventually

TOPIC = "history"
PARTITIONS = range(2)
#: Of all partitions together: what there is, what of it is archived, and what of that in a round or more of its own.
RECORDS, ARCHIVED, STEP = 4_000, 3_200, 800
ARCHIVED_OF_PARTITION = ARCHIVED // len(PARTITIONS)
PATIENCE_SECONDS = 120
LATER_MS = 2 * 3_600_000


@dataclass(frozen=True)
class History:
    """A topic whose first part is on HDFS, its beginning only there, and whose last part is only in the log."""

    broker: BrokerProcess
    metrics_port: int
    hdfs: HdfsServer
    #: For each partition, in order of offsets.
    sent: list[list[Record]]
    #: The command's lines about rounds, and its other output.
    rounds: list[dict[str, Any]]
    said: list[str]

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def uri(self, path: str) -> str:
        return uri_of(self.hdfs, path)

    def snapshot(self) -> Snapshot:
        status = describe(self.bootstrap, TOPIC)
        return load_snapshot(open_location(status.uri), status.archive)

    def options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": TOPIC, "includeHeaders": "true"}

    def reader(self) -> TopicReader:
        """A reader as Spark makes one."""
        reader = TailraceSource(CaseInsensitiveDict(self.options())).reader(spark_schema(COLUMNS))
        assert isinstance(reader, TopicReader)
        return reader

    def reads_of_broker(self) -> float:
        """How often the broker has read from the archive, once no client waits for it."""

        def is_quiet() -> bool:
            return Scrape(self.metrics_port).value("tailrace_archive_reads_waiting") == 0

        assert eventually(is_quiet, timeout_seconds=PATIENCE_SECONDS)
        return Scrape(self.metrics_port).value("tailrace_archive_reads_total")

    def check_consumer(self) -> None:
        """Let librdkafka read the whole topic, only through the broker."""
        for number, sent in enumerate(self.sent):
            received = consume(self.bootstrap, TOPIC, number, len(sent))
            assert len(received) == len(sent), self.broker.error_output()
            assert_is_what_was_sent(received, sent)

    def check_table(self, spark: SparkSession) -> None:
        """Let Spark read the whole topic, without a read of the archive by the broker."""
        before = self.reads_of_broker()
        table = spark.read.format("tailrace").options(**self.options(), minPartitions="5").load()
        rows = table.selectExpr("*", "unix_millis(timestamp) AS ms", "timestampType AS kind").collect()
        check_rows([row.asDict(recursive=True) for row in rows], self.sent)
        assert self.reads_of_broker() == before


def uri_of(hdfs: HdfsServer, path: str) -> str:
    # Its first answers take long, and the machine may be busy.
    return f"webhdfs://archivist@{hdfs.address}{path}?timeout_seconds=300"


def consume(bootstrap: str, topic: str, partition: int, count: int) -> list[Received]:
    return ConfluentClient(bootstrap).consume(topic, partition, count, timeout_seconds=PATIENCE_SECONDS)


def check_rows(rows: Sequence[Mapping[str, Any]], sent: list[list[Record]]) -> None:
    """Check that every sent record is a row, once, with all of its parts."""
    assert {row["topic"] for row in rows} == {TOPIC}
    found = [
        Received(
            row["partition"],
            row["offset"],
            row["ms"],
            row["kind"] == 1,
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in sorted(rows, key=lambda row: (row["partition"], row["offset"]))
    ]
    assert len(found) == sum(map(len, sent))
    for number, records in enumerate(sent):
        assert_is_what_was_sent([each for each in found if each.partition == number], records)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    work = tmp_path_factory.mktemp("hdfs")
    port = free_port()
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS, "metrics.port": str(port)}
    with HdfsServer(work / "hdfs") as hdfs, BrokerProcess(work / "broker" / "data", config=config) as broker:
        uri = uri_of(hdfs, "/open/archive")
        configs = {**archived_configs(work), "tailrace_archive_uri": uri}
        create_topic(broker.bootstrap, TOPIC, partitions=len(PARTITIONS), **configs)
        client = ConfluentClient(broker.bootstrap)
        records = [each._replace(partition=n % len(PARTITIONS)) for n, each in enumerate(some_records(RECORDS))]
        arguments = [TOPIC, "--to", uri, "--every", "1s", "--bootstrap", broker.bootstrap, "--master", "local[2]"]
        # On a busy machine a worker may take long to start.
        arguments += ["--conf", "spark.driver.memory=512m", "--conf", "spark.python.authenticate.socketTimeout=120s"]
        rounds: list[dict[str, Any]] = []
        with JobProcess(arguments, work / "stderr", "archive") as job:
            for first in range(0, ARCHIVED, STEP):
                client.produce(TOPIC, records[first : first + STEP])
                while sum(each["rows"] for each in rounds) < first + STEP:
                    line = job.next_batch()
                    assert line is not None, job.error_output()
                    rounds.append(line)
            job.signal(signal.SIGTERM)
            assert job.wait() == 0, job.error_output()
        client.produce(TOPIC, records[ARCHIVED:])
        first_segments = [broker.data_dir / f"{TOPIC}-{number}" / f"{0:020d}.log" for number in PARTITIONS]
        assert eventually(
            lambda: not any(path.exists() for path in first_segments), timeout_seconds=PATIENCE_SECONDS
        ), broker.error_output()
        sent = [[each for each in records if each.partition == number] for number in PARTITIONS]
        yield History(broker, port, hdfs, sent, rounds, job.error_output().splitlines())


def test_the_command_archives_a_topic_to_hdfs_record_by_record(history: History) -> None:
    uri = history.uri("/open/archive")
    count = len(history.rounds)
    files = sum(each["files"] for each in history.rounds)
    assert [history.said[0], history.said[-1]] == [
        f"topic {TOPIC} to {uri}; group {group_of(TOPIC)}",
        f"{count} rounds, {ARCHIVED} rows, {files} files: stopped; restart it to continue from here",
    ]
    status = describe(history.bootstrap, TOPIC)
    assert (status.uri, dict(status.partitions)) == (uri, dict.fromkeys(PARTITIONS, (0, ARCHIVED_OF_PARTITION)))
    report = verified(history.bootstrap, TOPIC)
    assert (report.rows, report.orphans) == (ARCHIVED, [])

    # A plain Parquet reader, with an HDFS client that does not know tailrace.
    system = fsspec.filesystem("webhdfs", host="127.0.0.1", port=history.hdfs.port, user="reader")
    snapshot = history.snapshot()
    names = [f"/open/archive/{snapshot.directory}/{file.name}" for file in snapshot.files]
    table = pq.read_table(names, filesystem=system, partitioning=None)
    table = table.append_column("ms", table.column("timestamp").cast(pa.int64()))
    table = table.append_column("kind", table.column("timestamp_type"))
    check_rows(table.to_pylist(), [sent[:ARCHIVED_OF_PARTITION] for sent in history.sent])


def test_a_consumer_reads_on_from_hdfs_to_the_log_what_was_produced(history: History) -> None:
    before = history.reads_of_broker()
    history.check_consumer()
    assert history.reads_of_broker() > before


def test_a_query_reads_the_files_on_hdfs_itself_and_each_offset_once(spark: SparkSession, history: History) -> None:
    pieces = [partition.value for partition in history.reader().partitions()]
    planned = [file for piece in pieces if isinstance(piece, ArchivedRange) for file in piece.files]
    assert sorted(planned, key=lambda file: file.name) == sorted(history.snapshot().files, key=lambda file: file.name)
    assert [piece for piece in pieces if isinstance(piece, OffsetRange)] == [
        OffsetRange(TOPIC, number, ARCHIVED_OF_PARTITION, len(history.sent[number])) for number in PARTITIONS
    ]
    history.check_table(spark)


def test_files_are_merged_on_hdfs_and_deleted_later_and_every_reader_sees_everything(
    spark: SparkSession, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    settings = CompactionSettings(min_files=2)
    location = open_location(history.uri("/open/archive"))
    small = len(history.snapshot().files)
    assert small >= len(PARTITIONS) * ARCHIVED // STEP
    early = history.reader()
    tasks = early.partitions()

    def compact(now_ms: int | None = None) -> CompactionReport:
        compaction = Compaction(history.bootstrap, TOPIC, settings, now_ms=now_ms)
        try:
            return compaction.run(compaction.plan(), merger_on(spark, location.uri))
        finally:
            compaction.close()

    report = compact()
    assert (report.merged_files, report.new_files, report.deleted_files) == (small, len(PARTITIONS), 0)
    assert report.waiting_files == small
    assert verified(history.bootstrap, TOPIC).rows == ARCHIVED
    history.check_consumer()

    report = compact(time.time_ns() // 1_000_000 + LATER_MS)
    assert (report.merged_files, report.deleted_files, report.waiting_files) == (0, small, 0)
    directory = history.snapshot().directory
    left = [entry.name for entry in location.list(directory) if entry.name.endswith(".parquet")]
    location.close()
    assert left == sorted(f"{directory}/{file.name}" for file in history.snapshot().files)
    checked = verified(history.bootstrap, TOPIC)
    assert (checked.rows, checked.files, checked.orphans) == (ARCHIVED, len(PARTITIONS), [])

    before = history.reads_of_broker()
    # All files of a query that was planned before are gone by now.
    found = [
        (batch.column("partition")[row].as_py(), batch.column("offset")[row].as_py())
        for task in tasks
        for batch in early.read(task)
        for row in range(batch.num_rows)
    ]
    assert sorted(found) == [(number, offset) for number in PARTITIONS for offset in range(len(history.sent[number]))]
    assert history.reads_of_broker() == before
    assert "asking brokers instead" not in caplog.text
    history.check_table(spark)
    history.check_consumer()


def test_the_archive_on_hdfs_is_replayed_with_and_without_its_topic(
    spark: SparkSession, history: History, topic: str
) -> None:
    checkpoint = history.uri("/open/checkpoint")
    warnings: list[str] = []

    def replay(source: str, target: str) -> list[ReplayedBatch]:
        create_topic(history.bootstrap, target, partitions=len(PARTITIONS), retention_ms="-1")
        asked = Replay(history.bootstrap, source, target, max_offsets_per_batch=RECORDS // 3)
        prepared = prepare(asked, checkpoint, warnings.append)
        batches: list[ReplayedBatch] = []
        try:
            run_replay(spark, prepared, report=batches.append, warn=warnings.append, stop=Stop())
        finally:
            prepared.close()
        return batches

    def check(target: str, sent: list[list[Record]]) -> None:
        for number, records in enumerate(sent):
            assert_is_what_was_sent(consume(history.bootstrap, target, number, len(records)), records)
        ends = {number: (0, len(records)) for number, records in enumerate(sent)}
        assert ConfluentClient(history.bootstrap).offsets(target, list(PARTITIONS)) == ends

    before = history.reads_of_broker()
    whole, alone = f"{topic}-whole", f"{topic}-alone"
    assert [each.left for each in replay(TOPIC, whole)][-1] == 0
    check(whole, history.sent)
    # By its directory, which brokers do not know.
    batches = replay(history.uri(f"/open/archive/{history.snapshot().directory}"), alone)
    assert (len(batches), sum(each.records for each in batches)) == (3, ARCHIVED)
    check(alone, [sent[:ARCHIVED_OF_PARTITION] for sent in history.sent])
    assert warnings == []
    assert history.reads_of_broker() == before
    kept = open_location(checkpoint)
    assert list(kept.list("progress")) == []
    kept.close()
