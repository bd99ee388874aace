"""Topics archived by Spark: the archive equals the topic, despite kills and concurrent archivers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from tailrace.archive.errors import LocationMissingError
from tailrace.archive.layout import UNFINISHED_PREFIX
from tailrace.archive.location import open_location
from tailrace.archive.manifest import load_snapshot
from tailrace.archive.quarantine import read_side_file
from tailrace.cli.pipeline_archive import command as archive_command
from tailrace.client import Groups
from tailrace.client.archive import describe
from tailrace.client.configs import ConfigOwner, Configs
from tailrace.errors import TailraceError
from tailrace.pipeline.archiving.archiver import group_of
from tailrace.pipeline.archiving.commit import ArchiveChangedError, TopicArchiver
from tailrace.pipeline.archiving.setup import open_archives
from tailrace.pipeline.archiving.topics import ArchivingError
from tailrace.pipeline.jobs.run import Stop
from tests.support.archives.archived_topics import RETENTION_CHECK_MS, archived_configs, local_start, some_records
from tests.support.archives.archiving import (
    SMALL_FILE_BYTES,
    Ambush,
    Archiving,
    archived_records,
    kill_python_workers,
    large_records,
    names_below,
    verified,
)
from tests.support.archives.s3_process import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.batches.poison import poison_batch, produce_batch
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import CODECS, Received, Record
from tests.support.spark.job_run import JobProcess
from tests.support.topics import create_topic, eventually

RECORDS = 4_000
LARGE_RECORDS = 16_000
#: For topics of old records that are archived only later.
FOR_EVER = {"retention_ms": "-1"}
WORKER_KILLS = 3
#: How often a driver is killed at each moment.
DRIVER_KILLS = 1
PATIENCE_SECONDS = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that deletes segments as soon as it may."""
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as process:
        yield process


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def archiving(spark: SparkSession, broker: BrokerProcess, place: Path) -> Archiving:
    return Archiving(spark, broker.bootstrap, place)


def read(broker: BrokerProcess, topic: str, partition: int, count: int, start: int = 0) -> list[Received]:
    received = ConfluentClient(broker.bootstrap).consume(topic, partition, count, start=start, timeout_seconds=120)
    assert len(received) == count
    return received


def offsets(received: list[Received]) -> list[int]:
    return [each.offset for each in received]


def lag_of(bootstrap: str, topic: str) -> int | None:
    """The visible lag; None before the first commit to the group, which does not delay rounds."""
    group = Groups(bootstrap).find(group_of(topic))
    return None if group is None else group.lag


def test_the_archive_is_the_topic_byte_for_byte_for_every_reader(archiving: Archiving, topic: str) -> None:
    bootstrap = archiving.bootstrap
    client = ConfluentClient(bootstrap)
    create_topic(bootstrap, topic, partitions=2, **archived_configs(archiving.place))
    records = some_records(RECORDS)
    step = RECORDS // len(CODECS)
    for number, codec in enumerate(CODECS):
        if number == 3:  # brokers set the times of the last two parts
            Configs(bootstrap).change(ConfigOwner.topic(topic), to={"message.timestamp.type": "LogAppendTime"})
        client.produce(topic, records[number * step : (number + 1) * step], compression=codec)
    odd = [
        Record(b"", b"", (("", b""), ("é", None))),
        Record(None, None, (("only", b"header"),)),
        Record(b"x" * 900_000),
    ]
    client.produce(topic, [each._replace(partition=1) for each in odd * 3])
    whole = [client.consume(topic, number, count, timeout_seconds=120) for number, count in ((0, RECORDS), (1, 9))]
    assert [offsets(each) for each in whole] == [list(range(RECORDS)), list(range(9))]

    archiving.once(topic)
    assert archiving.said == []  # it was configured before
    assert [describe(bootstrap, topic).partitions[number] for number in (0, 1)] == [(0, RECORDS), (0, 9)]
    report = verified(bootstrap, topic)
    assert (report.rows, report.orphans) == (RECORDS + 9, [])
    assert [archived_records(bootstrap, topic, number) for number in (0, 1)] == whole

    client.produce(topic, [Record(b"roll")] * 2)  # nothing of an active segment is deleted
    assert eventually(lambda: local_start(bootstrap, topic) > RECORDS // 2, timeout_seconds=PATIENCE_SECONDS)
    assert client.consume(topic, 0, RECORDS + 2, timeout_seconds=120)[:RECORDS] == whole[0]
    assert client.consume(topic, 1, 9, timeout_seconds=120) == whole[1]


def test_the_range_of_files_covers_records_that_were_deleted_before_they_were_archived(
    archiving: Archiving, topic: str
) -> None:
    bootstrap = archiving.bootstrap
    client = ConfluentClient(bootstrap)
    create_topic(bootstrap, topic, **FOR_EVER)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def delete_below(offset: int) -> None:
        for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            future.result(30)

    client.produce(topic, some_records(100))
    delete_below(10)
    archiving.once(topic)
    assert archiving.said == [
        f"{topic} is now archived: set tailrace.archive.enable=true and tailrace.archive.uri={archiving.place}"
    ]
    assert dict(describe(bootstrap, topic).partitions) == {0: (10, 100)}
    client.produce(topic, some_records(100))
    delete_below(150)
    archiving.once(topic)
    assert dict(describe(bootstrap, topic).partitions) == {0: (10, 200)}
    verified(bootstrap, topic)
    assert offsets(archived_records(bootstrap, topic, 0)) == [*range(10, 100), *range(150, 200)]
    # If all that was left is deleted, there is nothing to do.
    client.produce(topic, some_records(50))
    delete_below(250)
    before = len(archiving.rounds)
    assert len(archiving.once(topic)) == before


def test_several_topics_are_archived_in_rounds_that_say_how_far_they_came(
    archiving: Archiving, topic_name: Callable[[], str]
) -> None:
    bootstrap = archiving.bootstrap
    client = ConfluentClient(bootstrap)
    names = sorted(create_topic(bootstrap, topic_name(), partitions=2, **FOR_EVER) for _ in range(2))
    records = large_records(LARGE_RECORDS)
    for name in names:
        client.produce(name, records)
    archiving.file_bytes = SMALL_FILE_BYTES
    rounds = archiving.once(*names)

    assert len(rounds) > 2
    assert [each.number for each in rounds] == list(range(1, len(rounds) + 1))
    assert sum(each.rows for each in rounds) == 2 * LARGE_RECORDS
    lags = [each.lag for each in rounds]
    assert lags == [2 * LARGE_RECORDS - sum(each.rows for each in rounds[: n + 1]) for n in range(len(rounds))]
    assert {name for each in rounds for name in each.versions} == set(names)
    sent = sum(len(each.key or b"") + len(each.value or b"") for each in records)
    assert sum(each.record_bytes for each in rounds) == 2 * sent
    for name in names:
        report = verified(bootstrap, name)
        assert (report.rows, report.orphans) == (LARGE_RECORDS, [])
        assert report.files > 8
        assert eventually(lambda name=name: lag_of(bootstrap, name) == 0, timeout_seconds=60)  # type: ignore[misc]

    client.produce(names[0], some_records(3))
    assert lag_of(bootstrap, names[0]) == 3
    # A partition that was added later begins where its log does.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(names[0], 3)])[names[0]].result(30)
    assert eventually(lambda: describe(bootstrap, names[0]).partition_count == 3, timeout_seconds=60)
    client.produce(names[0], [each._replace(partition=2) for each in some_records(5)])
    assert archiving.once(*names)[-1].rows == 8
    assert describe(bootstrap, names[0]).partitions[2] == (0, 5)


class _Overtaken(TopicArchiver):
    """Another archiver commits just before its first commit."""

    overtake: Callable[[], object] | None = None

    def commit(self, *files):  # type: ignore[no-untyped-def]
        if (overtake := self.overtake) is not None:
            self.overtake = None
            overtake()
        return super().commit(*files)


def test_who_is_overtaken_by_another_driver_deletes_its_files_and_goes_on_from_there(
    archiving: Archiving, spark: SparkSession, topic: str
) -> None:
    bootstrap = archiving.bootstrap
    client = ConfluentClient(bootstrap)
    create_topic(bootstrap, topic, **FOR_EVER)
    client.produce(topic, some_records(RECORDS))
    (opened,) = archiving.open(topic)
    slow = _Overtaken(bootstrap, opened.status, opened.location, archiving.warnings.append)
    faster = Archiving(spark, bootstrap, archiving.place)

    def overtake() -> None:
        faster.once(topic)
        client.produce(topic, some_records(10))

    slow.overtake = overtake
    archiving.run([slow])
    assert [each.rows for each in faster.rounds] == [RECORDS]
    assert archiving.rounds == []  # everything to archive is archived
    assert archiving.warnings == [
        f"another archiver of {topic} was faster (version 1); deleted the files that were written here, continuing "
        "from its version"
    ]
    assert verified(bootstrap, topic).orphans == []
    assert archiving.once(topic)[-1].rows == 10


def test_two_drivers_at_once_leave_no_hole_and_no_duplicate(
    archiving: Archiving, spark: SparkSession, topic: str
) -> None:
    bootstrap = archiving.bootstrap
    create_topic(bootstrap, topic, partitions=2, **FOR_EVER)
    ConfluentClient(bootstrap).produce(topic, large_records(LARGE_RECORDS))
    drivers = [archiving, Archiving(spark, bootstrap, archiving.place)]
    failures: list[Exception] = []

    def run(driver: Archiving) -> None:
        driver.file_bytes = SMALL_FILE_BYTES
        try:
            driver.once(topic)
        except Exception as error:  # noqa: BLE001  told below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    report = verified(bootstrap, topic)
    assert (report.rows, report.orphans) == (LARGE_RECORDS, [])
    assert sum(each.rows for driver in drivers for each in driver.rounds) == LARGE_RECORDS


def test_python_workers_that_are_killed_cost_a_round_and_no_record(archiving: Archiving, topic: str) -> None:
    bootstrap = archiving.bootstrap
    create_topic(bootstrap, topic, partitions=2, **FOR_EVER)
    ConfluentClient(bootstrap).produce(topic, large_records(LARGE_RECORDS))
    archiving.file_bytes = SMALL_FILE_BYTES
    archivers = archiving.open(topic)
    # A data file, complete or not: tasks of the round are running.
    ambush = Ambush(archiving.place, lambda name: ".parquet" in name, kill_python_workers, WORKER_KILLS)
    ambush.start()
    try:
        archiving.run(archivers)
    finally:
        ambush.end()
    assert ambush.struck == WORKER_KILLS
    assert any("Python worker" in warning for warning in archiving.warnings), archiving.warnings
    assert verified(bootstrap, topic).rows == LARGE_RECORDS
    assert [offsets(archived_records(bootstrap, topic, n)) for n in (0, 1)] == [
        list(range(end)) for _, (_, end) in sorted(describe(bootstrap, topic).partitions.items())
    ]


MOMENTS: dict[str, Callable[[str], bool]] = {
    "while a file is written": lambda name: name.startswith(UNFINISHED_PREFIX) and name.endswith(".parquet"),
    "before the commit": lambda name: name.endswith(".parquet") and not name.startswith(UNFINISHED_PREFIX),
    "about the commit": lambda name: name.endswith(".json") and not name.startswith(UNFINISHED_PREFIX),
    "after the commit": lambda name: False,
}


def test_drivers_that_are_killed_at_any_moment_leave_archives_without_hole_and_duplicate(
    archiving: Archiving, broker: BrokerProcess, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Two topics, one of which has undecodable batches, and a third that does not exist."""
    bootstrap, place = archiving.bootstrap, archiving.place
    client = ConfluentClient(bootstrap)
    sound, poisoned = (create_topic(bootstrap, topic_name(), partitions=2, **archived_configs(place)) for _ in range(2))
    place.mkdir()
    arguments = [sound, poisoned, topic_name(), "--bootstrap", bootstrap, "--every", "1s", "--master", "local[2]"]
    arguments += ["--conf", "spark.driver.memory=512m"]
    sent: list[Record] = []
    raw: dict[int, bytes] = {}

    def send() -> None:
        more = [each._replace(partition=number % 2) for number, each in enumerate(some_records(RECORDS // 2))]
        for name in (sound, poisoned):
            client.produce(name, more)
        sent.extend(more)
        batch = poison_batch([b"%d" % len(raw)] * 3)
        raw[produce_batch(broker.port, poisoned, batch)] = batch

    for moment, is_it in MOMENTS.items():
        for _ in range(DRIVER_KILLS):
            send()
            with JobProcess(arguments, tmp_path / "stderr", "archive") as process:
                ambush = Ambush(place, is_it, lambda process=process: process.kill() is None, 1)  # type: ignore[misc]
                ambush.start()
                try:
                    # If it misses the moment in one round, it waits for the next round.
                    while process.next_batch() is not None and moment != "after the commit":
                        send()
                finally:
                    ambush.end()
                if moment == "after the commit":
                    process.kill()
            assert ambush.struck == (moment != "after the commit"), (moment, process.error_output())
    send()
    with JobProcess(arguments, tmp_path / "stderr", "archive") as process:
        while (line := process.next_batch()) is not None and line["lag"]:
            pass
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.error_output()
    assert "stopped; restart it to continue from here" in process.error_output()
    assert "Traceback" not in process.error_output()
    assert "does not exist; list all topics with: tailrace topic list; retrying" in process.error_output()

    assert verified(bootstrap, sound).rows == len(sent)
    report = verified(bootstrap, poisoned)
    assert (report.rows, report.quarantined_batches) == (len(sent), len(raw))
    for number in (0, 1):
        mine = [each for each in sent if each.partition == number]
        for name in (sound, poisoned):
            found = archived_records(bootstrap, name, number)
            taken = {first + delta for first in raw for delta in range(3)} if (name, number) == (poisoned, 0) else set()
            assert offsets(found) == [each for each in range(len(mine) + len(taken)) if each not in taken]
            assert [each.content() for each in found] == [(each.key, each.value, each.headers) for each in mine]
            assert [each.timestamp_ms for each in found] == [each.timestamp_ms for each in mine]
    snapshot = load_snapshot(open_location(str(place)), describe(bootstrap, poisoned).archive)
    kept = [
        (batch.header.base_offset, batch.data[21:])
        for file in snapshot.side_files
        for batch in read_side_file(open_location(str(place)), snapshot.directory, file)
    ]
    assert kept == [(first, batch[21:]) for first, batch in sorted(raw.items())]


def test_who_follows_a_topic_bears_an_archive_that_is_away_for_a_while(
    archiving: Archiving, topic: str, tmp_path: Path
) -> None:
    bootstrap, place = archiving.bootstrap, archiving.place
    client = ConfluentClient(bootstrap)
    create_topic(bootstrap, topic, **FOR_EVER)
    client.produce(topic, some_records(10))
    archivers = archiving.open(topic)
    thread = threading.Thread(target=archiving.run, args=(archivers, 100))
    thread.start()
    try:
        assert eventually(lambda: len(archiving.rounds) == 1, timeout_seconds=PATIENCE_SECONDS)
        place.rename(tmp_path / "away")
        client.produce(topic, some_records(10))
        assert eventually(lambda: len(archiving.warnings) == 1, timeout_seconds=PATIENCE_SECONDS)
        assert "check that it is mounted here; retrying until it works" in archiving.warnings[0]
        (tmp_path / "away").rename(place)
        assert eventually(lambda: len(archiving.rounds) == 2, timeout_seconds=PATIENCE_SECONDS)
    finally:
        archiving.stop.request(signal.SIGTERM)
        thread.join()
    assert verified(bootstrap, topic).rows == 20
    place.rename(tmp_path / "away")
    client.produce(topic, some_records(10))
    archiving.stop = Stop()
    with pytest.raises(TailraceError, match="check that it is mounted here"):
        archiving.run(archivers)


def test_who_follows_a_topic_leaves_what_fills_no_file_until_it_is_due(
    archiving: Archiving, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.pipeline.archiving.archiver._LOOK_SECONDS", 0.1)
    bootstrap = archiving.bootstrap
    client = ConfluentClient(bootstrap)
    create_topic(bootstrap, topic, partitions=2, **FOR_EVER)
    client.produce(topic, large_records(20))
    archiving.file_bytes = SMALL_FILE_BYTES

    def unarchived() -> int:
        return 2010 - describe(bootstrap, topic).partitions[0][1]

    thread = threading.Thread(target=archiving.run, args=(archiving.open(topic), 3_600_000))
    thread.start()
    try:
        assert eventually(lambda: len(archiving.rounds) == 1, timeout_seconds=PATIENCE_SECONDS)
        client.produce(topic, [each._replace(partition=1) for each in large_records(10)])
        client.produce(topic, large_records(2000, partitions=1))
        # Rounds may begin while records still come: what is left then is less than a file.
        assert eventually(lambda: 1000 * unarchived() < SMALL_FILE_BYTES, timeout_seconds=PATIENCE_SECONDS)
    finally:
        archiving.stop.request(signal.SIGTERM)
        thread.join()
    assert describe(bootstrap, topic).partitions[1] == (0, 10)
    assert eventually(lambda: lag_of(bootstrap, topic) == unarchived() + 10, timeout_seconds=60)


def test_who_is_asked_to_stop_a_second_time_does_not_wait_for_the_round(archiving: Archiving, topic: str) -> None:
    bootstrap = archiving.bootstrap
    create_topic(bootstrap, topic, partitions=2, **FOR_EVER)
    ConfluentClient(bootstrap).produce(topic, large_records(LARGE_RECORDS))
    archiving.file_bytes = SMALL_FILE_BYTES
    archivers = archiving.open(topic)
    done: list[int] = []

    def stop_at_once() -> bool:
        archiving.stop.request(signal.SIGTERM)
        archiving.stop.request(signal.SIGTERM)
        # Usually none yet, but files may appear late.
        done.append(len(archiving.rounds))
        return True

    ambush = Ambush(archiving.place, lambda name: ".parquet" in name, stop_at_once, 1)
    ambush.start()
    try:
        rounds = len(archiving.run(archivers))
    finally:
        ambush.end()
    assert ambush.struck == 1
    assert rounds <= done[0] + 1
    archiving.stop = Stop()
    archiving.once(topic)
    assert verified(bootstrap, topic).rows == LARGE_RECORDS


def test_archiving_ends_when_the_topic_is_no_longer_archived(archiving: Archiving, topic: str) -> None:
    bootstrap = archiving.bootstrap
    create_topic(bootstrap, topic, **FOR_EVER)
    ConfluentClient(bootstrap).produce(topic, some_records(10))
    archivers = archiving.open(topic)
    Configs(bootstrap).change(ConfigOwner.topic(topic), to={"tailrace.archive.enable": "false"})
    with pytest.raises(ArchiveChangedError, match="is no longer archived"):
        archiving.run(archivers)


def test_a_place_that_cannot_be_written_is_an_error_in_plain_words(archiving: Archiving, topic: str) -> None:
    bootstrap, place = archiving.bootstrap, archiving.place
    create_topic(bootstrap, topic, **FOR_EVER)
    ConfluentClient(bootstrap).produce(topic, some_records(10))
    archivers = archiving.open(topic)
    (place / f"topic={topic}").write_text("in the way of a directory")
    with pytest.raises(ArchivingError, match=f"cannot archive {topic}: .*topic={topic}"):
        archiving.run(archivers)
    assert describe(bootstrap, topic).version == 0
    assert list(names_below(place)) == [f"topic={topic}"]


def test_an_archive_in_an_object_store_is_filled_by_the_command(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with S3Server(tmp_path / "s3") as store, BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.bootstrap, topic, **FOR_EVER)
        ConfluentClient(broker.bootstrap).produce(topic, some_records(100))
        store.create_bucket("history")
        uri = f"s3://history/archive?endpoint_override={store.endpoint}"
        command = [sys.executable, "-m", "tailrace", "pipeline", "archive", topic, "--to", uri, "--once"]
        command += ["--bootstrap", broker.bootstrap, "--master", "local[1]", "--conf", "spark.driver.memory=512m"]
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        refused = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert refused.returncode == 1
        assert re.match("Error: .*(refuses|credentials|denied)", refused.stderr), refused.stderr
        assert not describe(broker.bootstrap, topic).is_enabled
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"round 1: 100 rows to 1 file in .* s, .* rows/s, .* MB/s, caught up\n", done.stdout)
        assert done.stderr.splitlines() == [
            f"{topic} is now archived: set tailrace.archive.enable=true and tailrace.archive.uri={uri}",
            f"topic {topic} to {uri}; group {group_of(topic)}",
            "1 round, 100 rows, 1 file: done",
        ]
        assert verified(broker.bootstrap, topic).rows == 100


def test_nothing_is_archived_to_a_place_that_a_broker_of_the_topic_cannot_read(
    broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.bootstrap, topic, **FOR_EVER)
    ConfluentClient(broker.bootstrap).produce(topic, some_records(10))
    with S3Server(tmp_path / "s3") as store:
        store.create_bucket("history")
        # This command has credentials, the broker has none.
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        why = refusal(broker, topic, "--to", f"s3://history/archive?endpoint_override={store.endpoint}", "--once")
    assert re.match(rf"{topic} is not archived: some of its brokers cannot read s3://history/archive", why)
    assert "broker 1: " in why
    assert describe(broker.bootstrap, topic).version == 0


def refusal(broker: BrokerProcess, *arguments: str) -> str:
    """Return why the command is refused, before Spark starts."""
    result = CliRunner().invoke(archive_command, [*arguments, "--bootstrap", broker.bootstrap])
    assert isinstance(result.exception, TailraceError), result.output
    return str(result.exception)


def test_topics_and_places_that_do_not_fit_are_refused_and_nothing_is_changed(
    broker: BrokerProcess, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    plain, compacted, archived = (topic_name() for _ in range(3))
    create_topic(broker.bootstrap, plain)
    create_topic(broker.bootstrap, compacted, cleanup_policy="compact")
    create_topic(broker.bootstrap, archived, **archived_configs(tmp_path / "here"))
    file = tmp_path / "file"
    file.write_text("no directory")
    to = ("--to", str(tmp_path / "archive"))

    assert refusal(broker, "nowhere", *to) == (
        "topic 'nowhere' does not exist; list all topics with: tailrace topic list"
    )
    assert refusal(broker, plain) == (
        f"{plain} is not archived: give the archive's location with --to URI, or configure it with: "
        f"tailrace config set topic {plain} tailrace.archive.enable=true tailrace.archive.uri=URI"
    )
    assert refusal(broker, plain, compacted, *to) == (
        f"topic '{compacted}' is compacted (cleanup.policy=compact) and cannot be archived: an archive would keep what "
        "compaction removes"
    )
    assert refusal(broker, archived, *to) == (
        f"{archived} has tailrace.archive.uri={tmp_path / 'here'}, so it cannot be archived to "
        f"{tmp_path / 'archive'}: omit --to, or give the configured location"
    )
    assert "is not a directory" in refusal(broker, plain, "--to", str(file))
    assert "use an absolute directory" in refusal(broker, plain, "--to", "archive")
    assert "but must start with file:" in refusal(broker, plain, "--to", "ftp://host/archive")
    assert not describe(broker.bootstrap, plain).is_enabled
    assert not (tmp_path / "archive").exists()


def test_a_place_may_be_written_in_another_way(archiving: Archiving, topic: str) -> None:
    create_topic(archiving.bootstrap, topic, **archived_configs(archiving.place))
    (opened,) = open_archives(archiving.bootstrap, [topic], f"file://{archiving.place}/", archiving.said.append)
    assert opened.status.uri == str(archiving.place)
    assert archiving.said == []


def test_an_archive_whose_place_is_gone_is_not_begun_anew(archiving: Archiving, topic: str, tmp_path: Path) -> None:
    create_topic(archiving.bootstrap, topic, **FOR_EVER)
    ConfluentClient(archiving.bootstrap).produce(topic, some_records(10))
    archiving.once(topic)
    archiving.place.rename(tmp_path / "away")
    with pytest.raises(LocationMissingError, match="check that it is mounted here"):
        archiving.open(topic)
    assert not archiving.place.exists()
