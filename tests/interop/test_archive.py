"""Old records are in the archive, new ones in the log: every client reads both as one, and gets what was produced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from tailrace.client.archive import ArchiveConflictError, describe
from tailrace.client.errors import ClientError
from tailrace.storage.checkpoints import encode_uuid
from tests.support.archives.archived_topics import (
    FIRST_TIME,
    RETENTION_CHECK_MS,
    archived_configs,
    assert_is_what_was_sent,
    listed_offset,
    local_start,
    some_records,
)
from tests.support.archives.archiver import archive_up_to, commit_files, write_files
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess, free_port
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.records import INVALID_CONFIG, Record, RefusedError
from tests.support.topics import create_topic, eventually

TOPIC = "events"
RECORDS = 4_000
ARCHIVED = 3_000
MAX_TIMESTAMP = -3
COUNT_ROWS = """
import duckdb, pandas
rows = duckdb.sql("SELECT count(*) FROM read_parquet($files, hive_partitioning = false)", params={"files": files})
print(rows.fetchall()[0][0])
print(len(pandas.read_parquet(files, columns=["offset"], partitioning=None)))
"""


class Archived(NamedTuple):
    """A topic whose first part is only in the archive."""

    broker: BrokerProcess
    records: list[Record]
    local_start: int
    metrics_port: int


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    place = tmp_path_factory.mktemp("archive")
    data_dir = tmp_path_factory.mktemp("archived") / "data"
    metrics_port = free_port()
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS, "metrics.port": str(metrics_port)}
    with BrokerProcess(data_dir, config=config) as broker:
        create_topic(broker.bootstrap, TOPIC, **archived_configs(place))
        records = some_records(RECORDS)
        ConfluentClient(broker.bootstrap).produce(TOPIC, records)
        archive_up_to(broker.bootstrap, TOPIC, {0: ARCHIVED // 2})
        archive_up_to(broker.bootstrap, TOPIC, {0: ARCHIVED})
        assert eventually(lambda: local_start(broker.bootstrap, TOPIC) > ARCHIVED // 2, timeout_seconds=120)
        # Archived segments are gone, except the one that also has unarchived records.
        assert local_start(broker.bootstrap, TOPIC) <= ARCHIVED
        yield Archived(broker, records, local_start(broker.bootstrap, TOPIC), metrics_port)


def check(client: ConfluentClient | KafkaPythonClient | AiokafkaClient | JavaClient, archived: Archived) -> None:
    """A client sees one log, from its first record to its last."""
    assert client.offsets(TOPIC, [0]) == {0: (0, RECORDS)}
    assert_is_what_was_sent(client.consume(TOPIC, 0, RECORDS, timeout_seconds=120), archived.records)
    middle = client.consume(TOPIC, 0, RECORDS - 777, start=777, timeout_seconds=120)
    assert_is_what_was_sent(middle, archived.records, 777)
    for offset in (0, 1234, archived.local_start - 1, archived.local_start, RECORDS - 1):
        assert client.offset_for_time(TOPIC, 0, FIRST_TIME + 1000 * offset - 500) == offset
    assert client.offset_for_time(TOPIC, 0, FIRST_TIME + 1000 * RECORDS) is None


def test_confluent_kafka_reads_archive_and_log_as_one(archived: Archived) -> None:
    check(ConfluentClient(archived.broker.bootstrap), archived)


def test_kafka_python_reads_archive_and_log_as_one(archived: Archived) -> None:
    check(KafkaPythonClient(archived.broker.bootstrap), archived)


def test_aiokafka_reads_archive_and_log_as_one(archived: Archived) -> None:
    check(AiokafkaClient(archived.broker.bootstrap), archived)


def test_the_java_client_reads_archive_and_log_as_one(archived: Archived, java_bridge: JavaBridge) -> None:
    check(JavaClient(archived.broker.bootstrap, java_bridge), archived)


def test_what_was_archived_is_told(archived: Archived) -> None:
    found = describe(archived.broker.bootstrap, TOPIC)
    assert found.partitions == {0: (0, ARCHIVED)}
    assert (found.version, found.is_enabled) == (2, True)


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([str(EXECUTABLE), *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_shows_how_far_the_archive_is(archived: Archived) -> None:
    code, output = run("archive", "status", TOPIC, "--bootstrap", archived.broker.bootstrap, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert (found["topic"], found["version"], found["enabled"]) == (TOPIC, 2, True)
    assert found["partitions"] == [
        {
            "partition": 0,
            "start": 0,
            "end": ARCHIVED,
            "deleted_below": None,
            "latest": RECORDS,
            "lag": RECORDS - ARCHIVED,
        }
    ]
    code, output = run("archive", "status", TOPIC, "--bootstrap", archived.broker.bootstrap)
    assert code == 0
    assert output.splitlines()[-1].split() == ["0", "0", str(ARCHIVED), "-", str(RECORDS), str(RECORDS - ARCHIVED)]
    code, output = run("archive", "status", "nobody-made-this", "--bootstrap", archived.broker.bootstrap)
    assert (code, output) == (
        1,
        "Error: topic 'nobody-made-this' does not exist; list all topics with: tailrace topic list\n",
    )


def test_the_programs_of_the_docs_read_what_the_commands_name(archived: Archived) -> None:
    page = (Path(__file__).parents[2] / "docs" / "archive.md").read_text(encoding="utf-8")
    listing = re.findall(r"```python\n(.*?)```", page.split("\n## Any Parquet reader\n", 1)[1], re.DOTALL)[0]
    code = listing.replace('"orders"', json.dumps(TOPIC)) + COUNT_ROWS
    environment = {
        **os.environ,
        "TAILRACE_BOOTSTRAP": archived.broker.bootstrap,
        "PATH": f"{EXECUTABLE.parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(ARCHIVED)] * 2


def test_a_topic_id_has_one_spelling(archived: Archived, tmp_path: Path) -> None:
    bootstrap = archived.broker.bootstrap
    # One in about three ids has a character that the two alphabets of base64 write differently.
    for number in range(12):
        topic = create_topic(bootstrap, f"spelt-{number}", **archived_configs(tmp_path))
        spelt = encode_uuid(describe(bootstrap, topic).lineage)
        code, output = run("topic", "describe", topic, "--bootstrap", bootstrap, "--json")
        assert (code, json.loads(output)["topic_id"]) == (0, spelt)
        code, output = run("archive", "status", topic, "--bootstrap", bootstrap, "--json")
        assert (code, json.loads(output)["topic_id"]) == (0, spelt)
        partition_metadata = archived.broker.data_dir / f"{topic}-0" / "partition.metadata"
        assert f"topic_id: {spelt}\n" in partition_metadata.read_text()


def test_the_command_line_verifies_an_archive(archived: Archived, tmp_path: Path) -> None:
    bootstrap = archived.broker.bootstrap
    topic = create_topic(bootstrap, "verified", **archived_configs(tmp_path / "archive"))
    code, output = run("archive", "verify", topic, "--bootstrap", bootstrap)
    assert (code, output) == (
        1,
        f"Error: nothing of {topic} is archived yet; archive it with: tailrace pipeline archive {topic}\n",
    )
    ConfluentClient(bootstrap).produce(topic, some_records(100))
    archive_up_to(bootstrap, topic, {0: 100}, rows_per_file=50)
    code, output = run("archive", "verify", topic, "--bootstrap", bootstrap, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert (found["sound"], found["files"], found["rows"], found["findings"]) == (True, 2, 100, [])
    file = min((tmp_path / "archive").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    code, output = run("archive", "verify", topic, "--bootstrap", bootstrap)
    assert code == 1
    assert file.name in output
    assert "problem" in output.splitlines()[-1]
    (tmp_path / "archive").rename(tmp_path / "away")
    code, output = run("archive", "verify", topic, "--bootstrap", bootstrap)
    assert code == 1
    assert output.startswith("Error: ")


def test_metrics_tell_how_far_the_archive_is_and_what_is_read_from_it(archived: Archived) -> None:
    def told() -> str:
        with urlopen(f"http://127.0.0.1:{archived.metrics_port}/metrics", timeout=120) as response:
            return str(response.read().decode())

    assert eventually(lambda: f'tailrace_archive_lag_offsets{{topic="{TOPIC}"}} {RECORDS - ARCHIVED}' in told())
    assert ConfluentClient(archived.broker.bootstrap).consume(TOPIC, 0, 1, timeout_seconds=120)
    lines = dict(line.rsplit(" ", 1) for line in told().splitlines() if not line.startswith("#"))
    assert float(lines[f'tailrace_archive_end_offset{{topic="{TOPIC}",partition="0"}}']) == ARCHIVED
    assert float(lines[f'tailrace_archive_lag_ms{{topic="{TOPIC}"}}']) > 0
    assert float(lines["tailrace_archive_reads_total"]) > 0
    assert float(lines["tailrace_archive_read_bytes_total"]) > 0
    assert float(lines["tailrace_archive_read_failures_total"]) == 0


def test_a_restart_goes_on_with_archive_and_log(archived: Archived) -> None:
    archived.broker.kill()
    archived.broker.start()
    client = ConfluentClient(archived.broker.bootstrap)
    assert client.offsets(TOPIC, [0]) == {0: (0, RECORDS)}
    assert_is_what_was_sent(client.consume(TOPIC, 0, RECORDS, timeout_seconds=120), archived.records)


def test_of_two_who_archive_at_once_one_is_refused(archived: Archived, tmp_path: Path) -> None:
    bootstrap = archived.broker.bootstrap
    topic = create_topic(bootstrap, "two-archivers", **archived_configs(tmp_path))
    ConfluentClient(bootstrap).produce(topic, some_records(100))
    seen = describe(bootstrap, topic)
    files = write_files(bootstrap, seen, {0: 60})
    archive_up_to(bootstrap, topic, {0: 50})
    with pytest.raises(ArchiveConflictError):
        commit_files(bootstrap, seen, files)
    assert describe(bootstrap, topic).partitions == {0: (0, 50)}
    archive_up_to(bootstrap, topic, {0: 100})
    assert describe(bootstrap, topic).partitions == {0: (0, 100)}


def test_the_largest_timestamp_is_found_in_the_archive(archived: Archived, tmp_path: Path) -> None:
    bootstrap = archived.broker.bootstrap
    topic = create_topic(bootstrap, "all-archived", **archived_configs(tmp_path))
    records = some_records(100)
    records[40] = records[40]._replace(timestamp_ms=FIRST_TIME + 1_000_000)
    ConfluentClient(bootstrap).produce(topic, records)
    archive_up_to(bootstrap, topic, {0: 100})
    assert eventually(lambda: local_start(bootstrap, topic) == 100, timeout_seconds=120)
    assert listed_offset(bootstrap, topic, MAX_TIMESTAMP) == 40


def test_more_than_is_committed_cannot_be_archived(archived: Archived, tmp_path: Path) -> None:
    bootstrap = archived.broker.bootstrap
    topic = create_topic(bootstrap, "too-far", **archived_configs(tmp_path))
    ConfluentClient(bootstrap).produce(topic, some_records(10))
    seen = describe(bootstrap, topic)
    (file,) = write_files(bootstrap, seen, {0: 10})
    beyond = type(file)(**{name: getattr(file, name) for name in file.__slots__} | {"next_offset": 11})
    with pytest.raises(ClientError, match="is committed up to offset 10, but"):
        commit_files(bootstrap, seen, [beyond])


def test_records_are_deleted_from_archive_and_log(archived: Archived, tmp_path: Path) -> None:
    bootstrap = archived.broker.bootstrap
    topic = create_topic(bootstrap, "deleted", **archived_configs(tmp_path))
    client = ConfluentClient(bootstrap)
    records = some_records(3_000)
    client.produce(topic, records)
    archive_up_to(bootstrap, topic, {0: 2_000})
    assert eventually(lambda: local_start(bootstrap, topic) > 500, timeout_seconds=120)
    _delete_records(bootstrap, topic, 321)
    assert client.offsets(topic, [0]) == {0: (321, 3_000)}
    assert_is_what_was_sent(client.consume(topic, 0, 3_000 - 321, start=321), records, 321)
    assert client.offset_for_time(topic, 0, FIRST_TIME) == 321
    _delete_records(bootstrap, topic, 2_500)
    assert client.offsets(topic, [0]) == {0: (2_500, 3_000)}


def _delete_records(bootstrap: str, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        assert future.result(120).low_watermark == offset


@pytest.mark.parametrize(
    "configs",
    [
        {"tailrace_archive_enable": "true"},
        {"tailrace_archive_enable": "true", "tailrace_archive_uri": "/somewhere", "cleanup_policy": "compact"},
        {"tailrace_archive_enable": "true", "tailrace_archive_uri": "nowhere"},
        {"tailrace_archive_lag_policy": "hope"},
    ],
    ids=["no place", "compacted", "no such place", "no such policy"],
)
def test_an_archive_that_cannot_be_is_refused(archived: Archived, configs: dict[str, str]) -> None:
    with pytest.raises(RefusedError) as refused:
        create_topic(archived.broker.bootstrap, f"refused-{time.monotonic_ns()}", **configs)
    assert refused.value.code == INVALID_CONFIG
