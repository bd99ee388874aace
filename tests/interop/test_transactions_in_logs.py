"""A log with committed, aborted and open transactions, as Kafka's clients read it and Kafka's tools see and end them.

The test writes the log itself while the broker is stopped, so that it knows where every batch is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import confluent_kafka
import kafka
import pytest

from tests.interop.conftest import MakeBroker
from tests.support.batches.transactional_log import OPEN_PRODUCER, TransactionalLog, write_log
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.java_client import CONSOLE_CONSUMER, DUMP_LOG, GET_OFFSETS, run_tool
from tests.support.topics import create_topic

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


class Written(NamedTuple):
    """A broker, and what is in the log of a topic."""

    broker: BrokerProcess
    topic: str
    log: TransactionalLog

    @property
    def committed(self) -> list[bytes]:
        return [value for _, value in self.log.committed]

    @property
    def all_values(self) -> list[bytes]:
        return [value for _, value in self.log.all_records]


@pytest.fixture
def written(make_broker: MakeBroker, topic_name: Callable[[], str]) -> Written:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name())
    return Written(broker, topic, write_log(broker, topic))


def with_confluent(written: Written, isolation: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": written.broker.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 1000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(written.topic, 0, 0)])
    values = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            consumer.close()
            return values
        values.append(message.value())


def with_kafka_python(written: Written, isolation: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=written.broker.bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        consumer_timeout_ms=3000,
        max_partition_fetch_bytes=1000,
    )
    partition = kafka.TopicPartition(written.topic, 0)
    consumer.assign([partition])
    values = [message.value for message in consumer]
    consumer.close()
    return values


def with_java(written: Written, isolation: str) -> list[bytes]:
    output = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", written.broker.bootstrap, "--topic", written.topic, "--partition", "0"),
        *("--offset", "earliest", "--isolation-level", isolation, "--timeout-ms", "5000"),
        *("--command-property", "max.partition.fetch.bytes=1000"),
    )
    return [line.encode() for line in output.splitlines() if not line.startswith("Processed")]


CLIENTS = {"confluent-kafka": with_confluent, "kafka-python": with_kafka_python, "java": with_java}


@pytest.mark.parametrize("client", CLIENTS)
def test_readers_of_committed_records_get_these_and_no_others(client: str, written: Written) -> None:
    assert CLIENTS[client](written, "read_committed") == written.committed
    assert CLIENTS[client](written, "read_uncommitted") == written.all_values


def test_the_index_snapshot_and_markers_are_kafkas(written: Written) -> None:
    written.broker.stop()
    directory = written.broker.data_dir / f"{written.topic}-0"
    files = [*sorted(directory.glob("*.txnindex")), *sorted(directory.glob("*.snapshot"))]
    output = run_tool(DUMP_LOG, "--files", ",".join(map(str, files)))
    entry = re.compile(
        r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", re.MULTILINE
    )
    assert [tuple(map(int, found)) for found in entry.findall(output)] == written.log.aborted
    producers = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)",
        output[output.rindex("Dumping") :],
    )
    coordinators = {int(number): int(coordinator) for number, _, coordinator, _ in producers}
    assert coordinators == {1: 1, 2: 1, 3: 1, 4: 1, OPEN_PRODUCER: -1}
    starts = {int(number): start for number, _, _, start in producers}
    assert str(written.log.open_offset) in starts[OPEN_PRODUCER]
    logs = run_tool(DUMP_LOG, "--files", ",".join(map(str, sorted(directory.glob("*.log")))), "--print-data-log")
    assert (logs.count("endTxnMarker: COMMIT"), logs.count("endTxnMarker: ABORT")) == (20, 40)
    assert "Mismatches" not in logs


def test_an_operator_finds_and_aborts_a_transaction_with_kafkas_tool(written: Written) -> None:
    bootstrap = ("--bootstrap-server", written.broker.bootstrap)
    where = ("--topic", written.topic, "--partition", "0")

    def end_offset(isolation: str) -> int:
        consumer = kafka.KafkaConsumer(bootstrap_servers=written.broker.bootstrap, isolation_level=isolation)
        partition = kafka.TopicPartition(written.topic, 0)
        offset: int = consumer.end_offsets([partition])[partition]
        consumer.close()
        return offset

    assert end_offset("read_committed") == written.log.open_offset
    described = run_tool(TRANSACTIONS, *bootstrap, "describe-producers", *where)
    row = next(line.split() for line in described.splitlines() if line.startswith(f"{OPEN_PRODUCER}"))
    assert row[-1] == str(written.log.open_offset)
    assert "None" in described, "the others have nothing open"
    run_tool(TRANSACTIONS, *bootstrap, "abort", *where, "--start-offset", str(written.log.open_offset))
    assert end_offset("read_committed") == end_offset("read_uncommitted") == written.log.open_offset + 3
    assert with_confluent(written, "read_committed") == [*written.committed, b"after"]
    latest = run_tool(GET_OFFSETS, *bootstrap, "--topic", written.topic)
    assert latest.strip() == f"{written.topic}:0:{written.log.open_offset + 3}"
