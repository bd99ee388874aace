"""Compacted topics with real clients: every one of them reads what is left, and Kafka's own tool the files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.interop.conftest import MakeBroker
from tests.interop.specification import Client
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import DUMP_LOG, JavaBridge, JavaClient, run_tool
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.clients.kcat_client import KcatClient
from tests.support.records import Received, Record
from tests.support.topics import create_topic, eventually

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

CLEANER = {"log_cleaner_backoff_ms": "100", "log_segment_delete_delay_ms": "500"}
TOPIC = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": "300",
    "delete_retention_ms": "86400000",
}
PATIENCE_SECONDS = 180
KEYS = 40
ROUNDS = 25


def writes(rounds: int = ROUNDS, first: int = 0) -> list[Record]:
    """Every key many times, with a header; some end as tombstones."""
    records = []
    for number, key in itertools.product(range(first, first + rounds), range(KEYS)):
        is_last = number == first + rounds - 1
        value = None if is_last and key % 5 == 0 else b"value %d of %d" % (number, key)
        records.append(Record(value, b"key %d" % key, (("round", b"%d" % number),)))
    return records


def newest(records: Sequence[Record]) -> dict[bytes | None, tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    return {record.key: (record.value, record.headers) for record in records}


def log_files(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted((broker.data_dir / f"{topic}-0").glob("*.log"))


def wait_until_compacted(broker: BrokerProcess, topic: str) -> None:
    """Wait until the checkpoint says that compaction has reached the end of the log."""
    end = ConfluentClient(broker.bootstrap).offsets(topic, [0])[0][1]
    checkpoint = broker.data_dir / "cleaner-offset-checkpoint"

    def is_done() -> bool:
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        return f"{topic} 0 {end}" in lines

    assert eventually(is_done, timeout_seconds=PATIENCE_SECONDS), f"not compacted up to {end}\n{broker.error_output()}"


def check(received: Sequence[Received], sent: Sequence[Record]) -> None:
    expected = newest(sent)
    assert {one.key: (one.value, one.headers) for one in received} == expected
    assert len(received) == len(expected)
    assert [one.offset for one in received] == sorted(one.offset for one in received)


@pytest.mark.parametrize("writer", ["confluent", "kafka-python"])
def test_every_client_reads_the_newest_record_of_each_key(
    writer: str, make_broker: MakeBroker, java_bridge: JavaBridge, topic_name: Callable[[], str]
) -> None:
    broker = make_broker(**CLEANER)
    every: list[Client] = [
        ConfluentClient(broker.bootstrap),
        KafkaPythonClient(broker.bootstrap),
        AiokafkaClient(broker.bootstrap),
        KcatClient(broker.bootstrap),
        JavaClient(broker.bootstrap, java_bridge),
    ]
    clients = {client.name: client for client in every}
    topic = create_topic(broker.bootstrap, topic_name(), **TOPIC)
    sent = []
    for number, codec in enumerate(["none", "lz4", "zstd"]):
        batch = writes(first=number * ROUNDS)
        clients[writer].produce(topic, batch, compression=codec)
        sent += batch
    wait_until_compacted(broker, topic)
    for client in every:
        check(client.consume(topic, 0, KEYS), sent)
    # A read inside a gap returns what follows it.
    first, *_, last = ConfluentClient(broker.bootstrap).consume(topic, 0, KEYS)
    for client in every:
        found, *_ = client.consume(topic, 0, 1, start=5)
        assert found.offset == first.offset
        found, *_ = client.consume(topic, 0, 1, start=last.offset)
        assert found == last
    broker.restart()
    check(ConfluentClient(broker.bootstrap).consume(topic, 0, KEYS), sent)


def test_tombstones_go_when_they_have_had_their_time(make_broker: MakeBroker, topic_name: Callable[[], str]) -> None:
    broker = make_broker(**CLEANER)
    topic = create_topic(broker.bootstrap, topic_name(), **{**TOPIC, "delete_retention_ms": "200"})
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"1", b"gone"), Record(b"1", b"kept"), Record(None, b"gone")])
    count = 3

    def is_gone() -> bool:
        # As in Kafka, an unchanged log is not compacted again.
        nonlocal count
        client.produce(topic, [Record(b"%d" % count, b"kept")])
        count += 1
        received = client.consume(topic, 0, count, timeout_seconds=2)
        # The last record is always there: a reader without it has not read everything.
        is_all = bool(received) and received[-1].value == b"%d" % (count - 1)
        return is_all and b"gone" not in [one.key for one in received]

    assert eventually(is_gone, timeout_seconds=PATIENCE_SECONDS), broker.error_output()


def test_an_idempotent_producer_goes_on_after_a_cleaning_and_a_restart(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker(**CLEANER)
    topic = create_topic(broker.bootstrap, topic_name(), **TOPIC)
    producer = ConfluentClient(broker.bootstrap).producer(enable_idempotence=True, reconnect_backoff_max_ms=500)
    errors = []

    def send(number: int) -> None:
        producer.produce(
            topic, b"%d" % number, b"key", partition=0, on_delivery=lambda error, _: error and errors.append(error)
        )
        assert producer.flush(PATIENCE_SECONDS) == 0

    for number in range(50):
        send(number)
    wait_until_compacted(broker, topic)
    for way in (broker.stop, broker.kill):
        way()
        broker.start()
        send(50)
        send(51)
        wait_until_compacted(broker, topic)
    assert errors == []
    (found,) = ConfluentClient(broker.bootstrap).consume(topic, 0, 1)
    assert (found.offset, found.value) == (53, b"51")


def test_kafkas_own_tool_reads_what_compaction_wrote(make_broker: MakeBroker, topic_name: Callable[[], str]) -> None:
    broker = make_broker(**CLEANER)
    topic = create_topic(broker.bootstrap, topic_name(), **TOPIC, index_interval_bytes="50")
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        # In the end every codec has the newest records of a fifth of the keys.
        own = [record for record in writes(5, first=number * 5) if number in (0, int((record.key or b"")[4:]) % 5)]
        ConfluentClient(broker.bootstrap).produce(topic, own, compression=codec)
    wait_until_compacted(broker, topic)
    # From then on, nothing rolls or replaces them.
    broker.stop()
    files = [path for path in log_files(broker, topic) if path.stat().st_size]
    assert files
    output = run_tool(DUMP_LOG, "--print-data-log", "--deep-iteration", "--files", ",".join(map(str, files)))
    keys = [line.partition(" key: ")[2].split(" payload")[0] for line in output.splitlines() if " key: " in line]
    assert sorted(keys) == sorted(f"key {key}" for key in range(KEYS))
    batches = [line for line in output.splitlines() if line.startswith("baseOffset:")]
    assert all("isvalid: true" in line for line in batches)
    assert any("deleteHorizonMs: OptionalLong[" in line for line in batches)
    for suffix in (".index", ".timeindex"):
        indexes = ",".join(str(path.with_suffix(suffix)) for path in files)
        checked = run_tool(DUMP_LOG, "--index-sanity-check", "--files", indexes)
        assert "passed sanity check" in checked
