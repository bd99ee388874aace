"""Compaction of archives: concurrent readers and archivers notice nothing, and expired records are gone."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tailrace.archive.compaction import Merge, write_merged
from tailrace.archive.location import open_location
from tailrace.archive.manifest import ArchivedFile, Snapshot
from tailrace.archive.verify import verify
from tailrace.cli.pipeline import command
from tailrace.client.archive import commit, describe
from tailrace.errors import TailraceError
from tailrace.pipeline.archiving import compacting
from tailrace.pipeline.archiving.compacting import Compaction, CompactionReport, CompactionSettings
from tailrace.pipeline.archiving.compaction_tasks import merger_on
from tests.support.archives.archived_topics import (
    FIRST_TIME,
    RETENTION_CHECK_MS,
    archived_configs,
    assert_is_what_was_sent,
    local_start,
    some_records,
)
from tests.support.archives.archiver import archive_up_to, write_files
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient, TopicPartition
from tests.support.records import Received, Record
from tests.support.topics import create_topic, eventually

HOUR_MS = 3_600_000
EAGER = CompactionSettings(min_files=2)
PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that deletes archived records as soon as it may."""
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS}
    with BrokerProcess(tmp_path_factory.mktemp("archived") / "data", config=config) as process:
        yield process


def merge_here(location_uri: str) -> compacting.Merger:
    """Merge without Spark."""

    def merge(snapshot: Snapshot, merges: object) -> list[ArchivedFile]:
        assert isinstance(merges, list)
        location = open_location(location_uri)
        return [write_merged(location, snapshot, each) for each in merges if isinstance(each, Merge)]

    return merge


def compact(
    bootstrap: str,
    topic: str,
    settings: CompactionSettings = EAGER,
    merger: compacting.Merger | None = None,
    now_ms: int | None = None,
) -> CompactionReport:
    compaction = Compaction(bootstrap, topic, settings, now_ms=now_ms)
    try:
        uri = describe(bootstrap, topic).uri
        return compaction.run(compaction.plan(), merger or merge_here(uri))
    finally:
        compaction.close()


def consume(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Received]:
    return ConfluentClient(bootstrap).consume(topic, 0, count, start=start, timeout_seconds=PATIENCE_SECONDS)


def in_files(place: Path) -> int:
    return len(list(place.rglob("*.parquet")))


def test_a_consumer_and_an_archiver_go_on_while_files_are_merged(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap, place = broker.bootstrap, tmp_path / "archive"
    create_topic(bootstrap, topic, **archived_configs(place))
    records = some_records(3000)
    ConfluentClient(bootstrap).produce(topic, records)
    for end in (500, 900, 2000):
        archive_up_to(bootstrap, topic, {0: end}, rows_per_file=100)
    assert eventually(lambda: local_start(bootstrap, topic) > 1000, timeout_seconds=PATIENCE_SECONDS)
    received: list[Received] = []
    consumer = threading.Thread(target=lambda: received.extend(consume(bootstrap, topic, 3000)))
    consumer.start()

    ends = iter((2300, 2600))

    def commit_after_an_archiver(*arguments: object) -> int:
        # Twice, an archiver commits after the compaction has read the newest version.
        if (end := next(ends, None)) is not None:
            archive_up_to(bootstrap, topic, {0: end}, rows_per_file=100)
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compacting, "commit", commit_after_an_archiver)
    settings = CompactionSettings(min_files=2, merges_per_commit=3, target_bytes=_bytes_of(place) // 4)
    report = compact(bootstrap, topic, settings, merger_on(spark, str(place)))
    consumer.join()
    assert_is_what_was_sent(received, records)
    assert (report.merged_files, report.deleted_files) == (20, 0)
    assert 4 <= report.new_files <= 6
    found = describe(bootstrap, topic)
    assert (found.partitions, found.version) == ({0: (0, 2600)}, report.version)
    checked = verify(open_location(found.uri), found.archive, found.partitions)
    assert (checked.findings, checked.rows, checked.files) == ([], 2600, report.new_files + 6)

    # Files that an archiver has written but not committed yet stay, however old they are.
    files = write_files(bootstrap, found, {0: 2800}, rows_per_file=100)
    later_ms = time.time_ns() // 1_000_000 + 2 * HOUR_MS
    before = in_files(place)
    assert compact(bootstrap, topic, CompactionSettings(min_files=100)).deleted_files == 0
    report = compact(bootstrap, topic, CompactionSettings(min_files=100), now_ms=later_ms)
    # The 20 files, and the manifests of two refused commits.
    assert (report.deleted_files, report.waiting_files) == (22, 0)
    assert in_files(place) == before - 20
    assert all((place / found.archive.directory / file.name).exists() for file in files)
    assert_is_what_was_sent(consume(bootstrap, topic, 3000), records)


def _bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*.parquet"))


def test_what_is_expired_or_deleted_leaves_the_archive(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    bootstrap, place = broker.bootstrap, tmp_path / "archive"
    retention = {"tailrace_archive_retention_ms": str(1_000_000)}
    create_topic(bootstrap, topic, **archived_configs(place), **retention)
    records = some_records(3000)
    ConfluentClient(bootstrap).produce(topic, records)
    archive_up_to(bootstrap, topic, {0: 2000}, rows_per_file=500)
    assert eventually(lambda: local_start(bootstrap, topic) > 1000, timeout_seconds=PATIENCE_SECONDS)
    # A record of offset n is of second n: at second 1600 all up to 600 are too old, and a whole file of them goes.
    report = compact(bootstrap, topic, CompactionSettings(), now_ms=FIRST_TIME + 1_600_000)
    assert (report.expired_files, report.starts, report.version) == (1, {0: 500}, 2)
    client = ConfluentClient(bootstrap)
    assert eventually(lambda: client.offsets(topic, [0])[0][0] == 500, timeout_seconds=PATIENCE_SECONDS)
    assert_is_what_was_sent(consume(bootstrap, topic, 2500, start=500), records, 500)

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    below = TopicPartition(topic, 0, 1100)
    admin.delete_records([below])[below].result(30)
    report = compact(bootstrap, topic, CompactionSettings(), now_ms=FIRST_TIME + 1_600_000)
    assert (report.expired_files, report.starts) == (1, {0: 1100})
    assert_is_what_was_sent(consume(bootstrap, topic, 1900, start=1100), records, 1100)
    report = compact(bootstrap, topic, CompactionSettings(), now_ms=FIRST_TIME + 1_600_000)
    assert (report.expired_files, report.starts, report.version) == (0, {}, 3)


def test_the_command_merges_files_and_writes_the_latest_value_of_each_key(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    bootstrap, place = broker.bootstrap, tmp_path / "archive"
    create_topic(bootstrap, topic, partitions=2, **archived_configs(place))
    records = [
        Record(
            None if number % 7 == 0 else f"value {number}".encode(),
            None if number % 11 == 0 else f"key {number % 40}".encode(),
            (("n", str(number).encode()),),
            FIRST_TIME + number,
            # Every key is in one partition, except one that moved.
            (number % 40 % 2) if number % 40 != 5 else int(number > 200),
        )
        for number in range(500)
    ]
    client = ConfluentClient(bootstrap)
    places = client.produce(topic, records)
    ends = {number: end for number, (_, end) in client.offsets(topic, [0, 1]).items()}
    archive_up_to(bootstrap, topic, ends, rows_per_file=30)
    latest: dict[bytes, tuple[object, ...]] = {}
    for record, (partition, offset) in zip(records, places, strict=True):
        if record.key is not None:
            latest[record.key] = (record.value, partition, offset, record.timestamp_ms)
    latest = {key: value for key, value in latest.items() if value[0] is not None}

    arguments = ["pipeline", "compact", topic, "--bootstrap", bootstrap, "--min-files", "2", "--json"]
    arguments += ["--snapshot", str(tmp_path / "snapshots"), "--master", "local[2]"]
    done = subprocess.run([str(EXECUTABLE), *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    files = sum(-(-end // 30) for end in ends.values())
    assert (report["merged_files"], report["new_files"], report["version"]) == (files, 2, 2)
    assert report["snapshot"]["keys"] == len(latest)
    assert report["snapshot"]["partitions"] == {str(number): [0, end] for number, end in ends.items()}
    path = Path(report["snapshot"]["path"])
    assert path == tmp_path / "snapshots" / f"topic={topic}" / "version=2"
    assert json.loads((path / "_offsets.json").read_text())["partitions"] == report["snapshot"]["partitions"]
    rows = spark.read.parquet(str(path)).selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert len(rows) == len(latest)
    assert {
        bytes(row["key"]): (bytes(row["value"]), row["partition"], row["offset"], row["ms"]) for row in rows
    } == latest
    assert_is_what_was_sent(
        [each._replace(offset=number) for number, each in enumerate(consume(bootstrap, topic, ends[0]))],
        [each for each in records if each.partition == 0],
    )


def test_what_cannot_be_compacted_is_said_and_a_dry_run_changes_nothing(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    bootstrap, place = broker.bootstrap, tmp_path / "archive"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(command, ["compact", *arguments, "--bootstrap", bootstrap])
        if isinstance(result.exception, TailraceError):
            return str(result.exception)
        return result.output

    assert run("nobody-made-this") == (
        "topic 'nobody-made-this' does not exist; list all topics with: tailrace topic list"
    )
    plain = create_topic(bootstrap, f"{topic}-plain")
    assert run(plain) == (
        f"nothing of {plain} is archived yet; archive it with: tailrace pipeline archive {plain} --to URI"
    )
    create_topic(bootstrap, topic, **archived_configs(place))
    assert run(topic) == f"nothing of {topic} is archived yet; archive it with: tailrace pipeline archive {topic}"
    ConfluentClient(bootstrap).produce(topic, some_records(100))
    archive_up_to(bootstrap, topic, {0: 100}, rows_per_file=20)
    files = sorted(place.rglob("*"))
    assert run(topic, "--dry-run").startswith(f"{topic}: 5 files of 0.0 MiB would become 1 file\n")
    assert json.loads(run(topic, "--dry-run", "--json"))["merged_files"] == 5
    assert run(topic, "--min-files", "6") == f"{topic}: nothing to do at version 1\n"
    assert sorted(place.rglob("*")) == files
    place.rename(tmp_path / "away")
    assert "does not exist: check that it is mounted here" in run(topic)
    (tmp_path / "away").rename(place)
    next(iter(place.rglob("*.parquet"))).unlink()
    with pytest.raises(TailraceError, match="is missing"):
        compact(bootstrap, topic)
    assert describe(bootstrap, topic).version == 1
