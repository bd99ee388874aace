"""Apache Kafka's Java client and command line tools against a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.interop.conftest import Broker
from tests.interop.specification import ClientSpecification
from tests.support.clients import java_client as java
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient, run_tool
from tests.support.records import TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC_OR_PARTITION, Record, RefusedError
from tests.support.topics import create_topic, eventually, topic_names


@pytest.fixture
def client(broker: Broker, java_bridge: JavaBridge) -> JavaClient:
    return JavaClient(broker.bootstrap, java_bridge)


class TestJava(ClientSpecification):
    @pytest.fixture
    def connect(self, java_bridge: JavaBridge) -> Callable[[Broker], JavaClient]:
        return lambda broker: JavaClient(broker.bootstrap, java_bridge)


def test_the_admin_client_creates_lists_describes_and_deletes(
    client: JavaClient, topic_name: Callable[[], str]
) -> None:
    name = topic_name()
    client.call("create", topic=name, partitions=3, configs={"retention.ms": "3600000"})
    assert eventually(lambda: name in client.call("list"))

    described = client.call("describe", topic=name)
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    assert all(
        (partition["replicas"], partition["isr"]) == (1, 1) and partition["leader"] >= 0
        for partition in described["partitions"]
    )
    assert described["has_topic_id"]
    assert described["configs"]["retention.ms"] == "3600000"
    assert described["configs"]["max.message.bytes"] == "1048588"
    assert described["brokers"] == 1
    assert described["cluster_id"]

    with pytest.raises(RefusedError) as refused:
        client.call("create", topic=name, partitions=1)
    assert refused.value.code == TOPIC_ALREADY_EXISTS
    client.call("delete", topic=name)
    assert eventually(lambda: name not in client.call("list"))
    with pytest.raises(RefusedError) as refused:
        client.call("describe", topic=name)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_an_offset_beyond_the_end_is_reported(client: JavaClient, topic_name: Callable[[], str]) -> None:
    topic = create_topic(client.bootstrap, topic_name())
    client.produce(topic, [Record(b"only")])
    with pytest.raises(RefusedError, match="OffsetOutOfRangeException"):
        client.consume(topic, 0, 1, start=1000)


def test_a_topic_deleted_and_created_again_starts_empty(client: JavaClient, topic_name: Callable[[], str]) -> None:
    topic = create_topic(client.bootstrap, topic_name())
    client.produce(topic, [Record(b"old %d" % number) for number in range(10)])
    client.call("delete", topic=topic)
    client.call("create", topic=topic, partitions=1)
    client.produce(topic, [Record(b"new")])
    assert client.offsets(topic, [0]) == {0: (0, 1)}
    assert [one.value for one in client.consume(topic, 0, 1)] == [b"new"]


def test_kafka_topics_creates_describes_and_deletes(broker: Broker, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    server = ("--bootstrap-server", broker.bootstrap)
    create = ("--partitions", "2", "--replication-factor", "1", "--config", "segment.bytes=2097152")
    assert f"Created topic {name}" in run_tool(java.TOPICS, *server, "--create", "--topic", name, *create)
    described = run_tool(java.TOPICS, *server, "--describe", "--topic", name)
    assert re.search(r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: .*segment\.bytes=2097152", described)
    assert len(re.findall(r"Partition: [01]\s+Leader: (\d+)\s+Replicas: \1\s+Isr: \1", described)) == 2
    assert name in topic_names(broker.bootstrap)
    run_tool(java.TOPICS, *server, "--delete", "--topic", name)
    assert eventually(lambda: name not in topic_names(broker.bootstrap))


def test_the_console_producer_and_consumer_pass_lines_on(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    # The console producer's default settings: idempotent, acks=all.
    run_tool(
        java.CONSOLE_PRODUCER,
        *server,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
        stdin="".join(f"k{number}:line {number}\n" for number in range(200)),
    )
    # By partition and offset the console consumer assigns itself and joins no group.
    output = run_tool(
        java.CONSOLE_CONSUMER,
        *server,
        "--partition",
        "0",
        "--offset",
        "150",
        "--max-messages",
        "50",
        "--formatter-property",
        "print.key=true",
        "--timeout-ms",
        "120000",
    )
    assert output.splitlines() == [f"k{number}\tline {number}" for number in range(150, 200)]


def test_the_performance_tool_loads_a_topic_and_every_record_counts(
    broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=3)
    output = run_tool(
        java.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", "50000", "--record-size", "200", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "compression.type=lz4", "acks=all"),
    )
    assert "50000 records sent" in output
    offsets = run_tool(java.GET_OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", topic)
    counted = {int(line.split(":")[1]): int(line.split(":")[2]) for line in offsets.split()}
    assert sorted(counted) == [0, 1, 2]
    assert sum(counted.values()) == 50_000
    seen = ConfluentClient(broker.bootstrap).offsets(topic, [0, 1, 2])
    assert {number: end for number, (_, end) in seen.items()} == counted


def test_the_versions_tool_understands_what_the_broker_offers(broker: Broker) -> None:
    output = run_tool(java.API_VERSIONS, "--bootstrap-server", broker.bootstrap)
    for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "CreateTopics(19)"):
        (line,) = [line for line in output.splitlines() if line.strip().startswith(f"{api}:")]
        assert "usable" in line
