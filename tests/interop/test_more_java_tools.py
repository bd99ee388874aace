"""More of Apache Kafka's command line tools: the cluster's id, the API versions, the console tools' finer options,
and the producers that system tests and measurements use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tailrace.wire.apis import ApiKey
from tests.interop.conftest import Broker, MakeBroker
from tests.support.clients import java_client as java
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import run_tool
from tests.support.records import Record, RefusedError
from tests.support.topics import create_topic


def test_the_cluster_tool_gives_the_id_and_the_brokers(broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    told = run_tool(java.CLUSTER, "cluster-id", *server)
    described = ConfluentClient(broker.bootstrap).producer().list_topics(timeout=60)
    assert told.strip() == f"Cluster ID: {described.cluster_id}"
    (line,) = [line for line in run_tool(java.CLUSTER, "list-endpoints", *server).splitlines() if line[:1].isdigit()]
    host, port = broker.bootstrap.split(":")
    assert line.split()[:3] == [str(described.controller_id), host, port]


def test_the_versions_tool_finds_every_api_usable(broker: Broker) -> None:
    output = run_tool(java.API_VERSIONS, "--bootstrap-server", broker.bootstrap)
    assert output.startswith(broker.bootstrap)
    offered = re.findall(r"^\s+(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[usable: (\d+)\]", output, re.MULTILINE)
    # The tool marks what the broker does not support; everything else is usable.
    known = output.count("UNSUPPORTED")
    assert len(offered) + known == len(re.findall(r"^\s+\w+\(\d+\): ", output, re.MULTILINE))
    by_key = {int(key): (name, int(last or first)) for name, key, first, last, _ in offered}
    assert all(int(usable) <= by_key[int(key)][1] for _, key, _, _, usable in offered)
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.CREATE_TOPICS} <= set(by_key)


def test_the_features_tool_describes_downgrades_and_upgrades(make_broker: MakeBroker) -> None:
    server = ("--bootstrap-server", make_broker().bootstrap)

    def described() -> tuple[int, int]:
        """The level of tailrace.version, and the epoch."""
        (line,) = [
            line for line in run_tool(java.FEATURES, *server, "describe").splitlines() if "tailrace.version" in line
        ]
        fields = dict(re.findall(r"(\w+): (\S+)", line))
        assert (fields["SupportedMinVersion"], fields["SupportedMaxVersion"]) == ("1", "3")
        return int(fields["FinalizedVersionLevel"]), int(fields["Epoch"])

    assert described() == (3, 0)
    told = run_tool(java.FEATURES, *server, "downgrade", "--feature", "tailrace.version=1", "--dry-run")
    assert "tailrace.version can be downgraded to 1." in told
    assert described() == (3, 0)
    told = run_tool(java.FEATURES, *server, "downgrade", "--feature", "tailrace.version=1")
    assert "tailrace.version was downgraded to 1." in told
    assert described() == (1, 1)
    with pytest.raises(RefusedError, match="Broker 1 only supports versions 1-3"):
        run_tool(java.FEATURES, *server, "upgrade", "--feature", "tailrace.version=4")
    with pytest.raises(RefusedError, match="Broker 1 does not support this feature"):
        run_tool(java.FEATURES, *server, "upgrade", "--feature", "metadata.version=20")
    assert described() == (1, 1)
    told = run_tool(java.FEATURES, *server, "upgrade", "--feature", "tailrace.version=3")
    assert "tailrace.version was upgraded to 3." in told
    assert described() == (3, 2)


def test_the_console_tools_show_all_of_a_record(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    run_tool(
        java.CONSOLE_PRODUCER,
        *server,
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        *("--compression-codec=zstd", "--sync"),
        stdin="".join(f"h1:a{number},h2:b\tkey\tline {number}\n" for number in range(20)) + "h1:x\tkey\tNULL\n",
    )
    offsets = ConfluentClient(broker.bootstrap).offsets(topic, [0, 1])
    # One key: all are in one partition.
    (partition,) = [number for number, (_, end) in offsets.items() if end]
    assert offsets[partition] == (0, 21)
    output = run_tool(
        java.CONSOLE_CONSUMER,
        *server,
        *("--partition", str(partition), "--offset", "18", "--max-messages", "3", "--timeout-ms", "120000"),
        *(
            word
            for name in ("key", "headers", "offset", "partition", "timestamp")
            for word in ("--formatter-property", f"print.{name}=true")
        ),
    )
    shown = [re.sub(r"CreateTime:\d+", "CreateTime", line) for line in output.splitlines()]
    assert shown == [
        f"CreateTime\tPartition:{partition}\tOffset:18\th1:a18,h2:b\tkey\tline 18",
        f"CreateTime\tPartition:{partition}\tOffset:19\th1:a19,h2:b\tkey\tline 19",
        f"CreateTime\tPartition:{partition}\tOffset:20\th1:x\tkey\tnull",
    ]


def test_the_verifiable_producer_finds_every_record_acknowledged(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    output = run_tool(
        java.VERIFIABLE_PRODUCER,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--max-messages", "500", "--acks", "-1"),
        *("--value-prefix", "7"),
    )
    events = [json.loads(line) for line in output.splitlines()]
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (500, 500)
    acknowledged = {
        (event["partition"], event["offset"]): event["value"]
        for event in events
        if event["name"] == "producer_send_success"
    }
    assert not [event for event in events if event["name"] == "producer_send_error"]
    reader = ConfluentClient(broker.bootstrap)
    found = {
        (one.partition, one.offset): (one.value or b"").decode()
        for partition, (_, end) in reader.offsets(topic, [0, 1]).items()
        for one in reader.consume(topic, partition, end)
    }
    assert found == acknowledged
    assert sorted(found.values(), key=lambda text: int(text[2:])) == [f"7.{number}" for number in range(500)]


def test_the_performance_tool_waits_for_every_kind_of_acknowledgement(
    broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    output = run_tool(
        java.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", "20000", "--record-size", "300", "--throughput", "50000"),
        *("--print-metrics", "--producer-props", f"bootstrap.servers={broker.bootstrap}"),
        *("compression.type=zstd", "acks=1", "enable.idempotence=false", "batch.size=65536"),
    )
    assert "20000 records sent" in output
    assert re.search(r"record-error-total:\{.*\}\s+: 0\.000", output)
    ends = ConfluentClient(broker.bootstrap).offsets(topic, [0, 1])
    assert sum(end for _, end in ends.values()) == 20_000


def test_the_consumer_performance_tool_reads_a_topic_to_its_end(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    ConfluentClient(broker.bootstrap).produce(
        topic, [Record(b"x" * 200, partition=number % 2) for number in range(2000)], compression="snappy"
    )
    # The tool reads as the only member of a group of its own.
    output = run_tool(
        java.CONSUMER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--messages", "2000", "--timeout", "120000"),
    )
    header, row = (line.split(", ") for line in output.splitlines() if ", " in line)
    assert int(row[header.index("data.consumed.in.nMsg")]) == 2000
