"""Undecodable batches in an archive: what clients get, and the commands for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.errors import ErrorCode
from tailrace.records.compression import Compression
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.archives.archived_topics import RETENTION_CHECK_MS
from tests.support.archives.quarantined_topic import POISON, quarantined_topic
from tests.support.batches.poison import DAMAGES, fetch_batches, produce_batch, sound_batch
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess, free_port
from tests.support.brokers.scrape import Scrape
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.raw_client import RawClient
from tests.support.topics import create_topic, eventually

TOPIC = "events"


class Quarantine(NamedTuple):
    """A broker with a topic whose archive has quarantined batches."""

    broker: BrokerProcess
    metrics_port: int

    def run(self, *arguments: str) -> tuple[int, str, str]:
        command = [str(EXECUTABLE), "archive", *arguments, "--bootstrap", self.broker.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def quarantine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarantine]:
    port = free_port()
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS, "metrics.port": str(port)}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as broker:
        quarantined_topic(broker.bootstrap, broker.port, TOPIC, tmp_path_factory.mktemp("place") / "archive")
        yield Quarantine(broker, port)


def test_quarantined_batches_are_shown_and_retried(quarantine: Quarantine, tmp_path: Path) -> None:
    broker = quarantine.broker
    code, _, said = quarantine.run("status", TOPIC)
    assert code == 0
    assert "Warning: 2 quarantined batches" in said
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
    assert "Cannot decompress records" in listed
    output = tmp_path / "batch"
    code, shown, _ = quarantine.run("quarantine", "show", TOPIC, "0", "101", "--output", str(output))
    assert code == 0
    assert output.read_bytes()[21:] == POISON[21:]
    code, shown, _ = quarantine.run("quarantine", "show", TOPIC, "0", "102")
    assert "compressed\n" in shown
    code, _, said = quarantine.run("quarantine", "show", TOPIC, "0", "99")
    assert code == 1
    assert "offset 99 of events-0 is not in a quarantined batch" in said

    # Clients get both unchanged.
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
    assert "the archive is sound" in told
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
