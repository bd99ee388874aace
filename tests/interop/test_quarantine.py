"""Batches in an archive that nobody can decode: what clients get of them, and the commands that look after them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, load_snapshot, write_manifest
from tailrace.archive.parquet import write_file
from tailrace.archive.quarantine import SideFileWriter
from tailrace.client.archive import ArchiveStatus, commit, describe
from tailrace.errors import ErrorCode
from tailrace.records.batch import iterate_batches
from tailrace.records.compression import Compression
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.archived_topics import RETENTION_CHECK_MS, archived_configs, local_start, some_records
from tests.support.archiver import write_files
from tests.support.broker_process import EXECUTABLE, BrokerProcess, free_port
from tests.support.confluent_client import ConfluentClient
from tests.support.poison import DAMAGES, fetch_batches, poison_batch, produce_batch, sound_batch
from tests.support.raw_client import RawClient
from tests.support.records import Record
from tests.support.scrape import Scrape
from tests.support.topics import create_topic, eventually

TOPIC = "events"
POISON = poison_batch([b"x"] * 3)
#: Quarantined here although it is sound: as if an earlier version of tailrace had not been able to decode it.
MISJUDGED = sound_batch([b"one", b"two"], Compression.ZSTD)


class Quarantine:
    """Records at 0 to 99 and 105 to 109 in an archive, and between them two batches that are set aside."""

    def __init__(self, broker: BrokerProcess, place: Path, metrics_port: int) -> None:
        self.broker = broker
        self.metrics_port = metrics_port
        bootstrap = broker.bootstrap
        create_topic(bootstrap, TOPIC, **archived_configs(place))
        client = ConfluentClient(bootstrap)
        client.produce(TOPIC, some_records(100))
        assert produce_batch(broker.port, TOPIC, POISON) == 100
        assert produce_batch(broker.port, TOPIC, MISJUDGED) == 103
        client.produce(TOPIC, some_records(5))
        status = describe(bootstrap, TOPIC)
        location = open_location(status.uri)
        location.create()
        files = write_files(bootstrap, status, {0: 100})
        aside = SideFileWriter(TOPIC, status.topic_id, 0, 100)
        data = fetch_batches(broker.port, TOPIC, 100)
        for position, header in iterate_batches(data):
            if header.base_offset in (100, 103):
                aside.add(header, data[position : position + header.size], "Records do not decompress")
        behind = write_files(bootstrap, replace(status, partitions={0: (0, 105)}), {0: 110})
        behind = [_widened(location, status, behind[0])]
        side_file = aside.store(location, 110)
        assert side_file is not None
        manifest = load_snapshot(location, status.archive).commit([*files, *behind], quarantined=[side_file])
        commit(bootstrap, status, write_manifest(location, manifest), manifest.partitions)
        # Old enough to go, and of an active segment nothing does.
        client.produce(TOPIC, [Record(b"roll")] * 2)
        assert eventually(lambda: local_start(bootstrap, TOPIC) >= 110, timeout_seconds=120)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        command = [str(EXECUTABLE), "archive", *arguments, "--bootstrap", self.broker.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr


def _widened(location: Location, status: ArchiveStatus, file: ArchivedFile) -> ArchivedFile:
    """The same rows in a file whose range begins with the batches that are set aside."""
    table = pq.read_table(Path(status.uri) / status.archive.directory / file.name, partitioning=None)
    location.delete(f"{status.archive.directory}/{file.name}")
    return write_file(location, status.topic, status.topic_id, 0, (100, file.next_offset), [table])


@pytest.fixture(scope="module")
def quarantine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarantine]:
    port = free_port()
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS, "metrics.port": str(port)}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as broker:
        yield Quarantine(broker, tmp_path_factory.mktemp("place") / "archive", port)


def test_quarantined_batches_are_shown_and_retried(quarantine: Quarantine, tmp_path: Path) -> None:
    broker = quarantine.broker
    code, _, said = quarantine.run("status", TOPIC)
    assert code == 0
    assert "Warning: 2 of its batches cannot be decoded" in said
    scraped = eventually(
        lambda: Scrape(quarantine.metrics_port).value("tailrace_archive_quarantined_batches", topic=TOPIC) == 2,
        timeout_seconds=120,
    )
    assert scraped

    code, listed, _ = quarantine.run("quarantine", "list", TOPIC, "--json")
    rows = [json.loads(line) for line in listed.splitlines()]
    assert [(row["first_offset"], row["last_offset"], row["codec"]) for row in rows] == [
        (100, 102, "gzip"),
        (103, 104, "zstd"),
    ]
    code, listed, _ = quarantine.run("quarantine", "list", TOPIC)
    assert "100-102" in listed
    assert "Records do not decompress" in listed
    output = tmp_path / "batch"
    code, shown, _ = quarantine.run("quarantine", "show", TOPIC, "0", "101", "--output", str(output))
    assert code == 0
    assert output.read_bytes()[21:] == POISON[21:]
    code, shown, _ = quarantine.run("quarantine", "show", TOPIC, "0", "102")
    assert "compressed\n" in shown
    code, _, said = quarantine.run("quarantine", "show", TOPIC, "0", "99")
    assert code == 1
    assert "offset 99 of events-0 is not in a quarantined batch" in said

    # Clients get both as the log had them.
    assert fetch_batches(broker.port, TOPIC, 101)[21 : len(POISON)] == POISON[21:]
    assert [each.value for each in ConfluentClient(broker.bootstrap).consume(TOPIC, 0, 2, start=103)] == [
        b"one",
        b"two",
    ]

    code, told, _ = quarantine.run("quarantine", "retry", TOPIC)
    assert (code, told) == (1, "1 batch decoded, 2 records added; 1 batch left in quarantine\n")
    code, told, _ = quarantine.run("quarantine", "retry", TOPIC, "--json")
    assert (code, json.loads(told)["left_batches"]) == (1, 1)
    code, told, _ = quarantine.run("verify", TOPIC)
    assert code == 0, told
    assert "1 quarantined batch, kept as produced" in told
    assert "all of it is sound" in told
    code, listed, _ = quarantine.run("quarantine", "list", TOPIC, "--json")
    assert [json.loads(line)["first_offset"] for line in listed.splitlines()] == [100]
    client = ConfluentClient(broker.bootstrap)
    assert [each.value for each in client.consume(TOPIC, 0, 2, start=103)] == [b"one", b"two"]
    assert [each.offset for each in client.consume(TOPIC, 0, 100)] == list(range(100))
    assert fetch_batches(broker.port, TOPIC, 101)[21 : len(POISON)] == POISON[21:]


@pytest.mark.parametrize("damage", ["gzip that is not gzip", "fewer records than it says", "a header without a name"])
def test_a_topic_that_validates_records_refuses_what_nobody_can_decode(quarantine: Quarantine, damage: str) -> None:
    """Apache Kafka refuses each of these, too; records that do not decompress as UNKNOWN_SERVER_ERROR."""
    topic = create_topic(
        quarantine.broker.bootstrap, f"validated-{damage.replace(' ', '-')}", tailrace_records_validate="true"
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=DAMAGES[damage]())])
    with RawClient(quarantine.broker.port) as client:
        answer = client.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), 8, ProduceResponse)
    (told,) = answer.responses[0].partition_responses
    assert told.error_code == ErrorCode.INVALID_RECORD
    assert told.error_message
    assert produce_batch(quarantine.broker.port, topic, sound_batch([b"a"] * 500, Compression.GZIP)) == 0
