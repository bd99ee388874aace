"""Kafka's own administration tools against a real broker: configurations, partitions, log directories, offsets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import Broker, MakeBroker
from tests.support.clients import java_client as java
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import run_tool
from tests.support.records import Record, RefusedError
from tests.support.topics import create_topic


class Configs:
    """`kafka-configs` for one topic, broker, or all brokers."""

    def __init__(self, broker: Broker, *entity: str) -> None:
        self._arguments = ("--bootstrap-server", broker.bootstrap, *entity)

    def describe(self, *options: str) -> dict[str, tuple[str, list[str]]]:
        """The value of each key and its synonyms, as the tool prints them."""
        output = run_tool(java.CONFIGS, *self._arguments, "--describe", *options)
        found = re.findall(r"^  (\S+)=(.*?) sensitive=\w+ synonyms=\{(.*)\}$", output, re.MULTILINE)
        return {name: (value, synonyms.split(", ") if synonyms else []) for name, value, synonyms in found}

    def alter(self, *options: str) -> str:
        return run_tool(java.CONFIGS, *self._arguments, "--alter", *options)


def test_kafka_configs_describes_and_alters_topics(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), segment_bytes="2097152")
    configs = Configs(broker, "--entity-type", "topics", "--entity-name", topic)
    added = configs.alter(
        "--add-config", "retention.ms=60000,max.message.bytes=5000", "--delete-config", "segment.bytes"
    )
    assert f"Completed updating config for topic {topic}." in added
    found = configs.describe()
    assert found["retention.ms"][0] == "60000"
    assert found["retention.ms"][1][0] == "DYNAMIC_TOPIC_CONFIG:retention.ms=60000"
    assert found["max.message.bytes"] == (
        "5000",
        ["DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000", "DEFAULT_CONFIG:message.max.bytes=1048588"],
    )
    assert "segment.bytes" not in found
    assert configs.describe("--all")["segment.bytes"][0] == "1073741824"
    with pytest.raises(RefusedError, match=r"Invalid value soon for configuration retention\.ms"):
        configs.alter("--add-config", "retention.ms=soon")


def test_kafka_configs_describes_and_alters_brokers_and_their_default(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name())
    for_all = Configs(broker, "--entity-type", "brokers", "--entity-default")
    own = Configs(broker, "--entity-type", "brokers", "--entity-name", "1")
    assert "Completed updating default config for brokers" in for_all.alter(
        "--add-config", "log.retention.ms=70000,message.max.bytes=3000"
    )
    own.alter("--add-config", "message.max.bytes=4000")
    broker.restart()
    assert {name: value for name, (value, _) in for_all.describe().items()} == {
        "log.retention.ms": "70000",
        "message.max.bytes": "3000",
    }
    assert own.describe()["message.max.bytes"] == (
        "4000",
        [
            "DYNAMIC_BROKER_CONFIG:message.max.bytes=4000",
            "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=3000",
            "DEFAULT_CONFIG:message.max.bytes=1048588",
        ],
    )
    of_topic = Configs(broker, "--entity-type", "topics", "--entity-name", topic).describe("--all")
    assert of_topic["retention.ms"][0] == "70000"
    with pytest.raises(RefusedError):
        ConfluentClient(broker.bootstrap).produce(topic, [Record(b"x" * 6000)])
    own.alter("--delete-config", "message.max.bytes")
    assert "message.max.bytes" not in {
        name for name, (_, synonyms) in own.describe().items() if synonyms[0].startswith("DYNAMIC_BROKER_CONFIG")
    }
    with pytest.raises(RefusedError, match=r"Cannot update these configs dynamically: Set\(log\.dirs\)"):
        own.alter("--add-config", "log.dirs=/elsewhere")


def test_kafka_configs_sets_the_levels_of_loggers(make_broker: MakeBroker) -> None:
    broker = make_broker()
    loggers = Configs(broker, "--entity-type", "broker-loggers", "--entity-name", "1")
    loggers.alter("--add-config", "tailrace.broker=DEBUG")
    found = loggers.describe()
    assert (found["tailrace.broker"][0], found["tailrace"][0]) == ("DEBUG", "INFO")
    assert "root" in found


def test_kafka_topics_adds_partitions(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    run_tool(java.TOPICS, *server, "--alter", "--partitions", "3")
    described = run_tool(java.TOPICS, *server, "--describe")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1", described)
    assert re.findall(r"Partition: (\d+)", described) == ["0", "1", "2"]
    with pytest.raises(RefusedError, match="currently has 3 partition"):
        run_tool(java.TOPICS, *server, "--alter", "--partitions", "2")


def test_kafka_log_dirs_delete_records_and_get_offsets_agree(
    broker: Broker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"x" * 100, partition=number % 2) for number in range(20)])
    server = ("--bootstrap-server", broker.bootstrap)

    output = run_tool(java.LOG_DIRS, *server, "--describe", "--topic-list", topic)
    (of_broker,) = json.loads(output.splitlines()[-1])["brokers"]
    logs = [log for directory in of_broker["logDirs"] for log in directory["partitions"]]
    assert sorted(log["partition"] for log in logs) == [f"{topic}-0", f"{topic}-1"]
    assert all(log["size"] > 1000 and (log["offsetLag"], log["isFuture"]) == (0, False) for log in logs)
    assert all(directory["error"] is None for directory in of_broker["logDirs"])

    wanted = tmp_path / "delete.json"
    partitions = [{"topic": topic, "partition": 0, "offset": 3}, {"topic": topic, "partition": 1, "offset": -1}]
    wanted.write_text(json.dumps({"version": 1, "partitions": partitions}))
    deleted = run_tool(java.DELETE_RECORDS, *server, "--offset-json-file", str(wanted))
    assert dict(re.findall(r"partition: \S+-(\d)\s+low_watermark: (\d+)", deleted)) == {"0": "3", "1": "10"}
    for time, expected in (("-2", {"0": "3", "1": "10"}), ("-1", {"0": "10", "1": "10"})):
        offsets = run_tool(java.GET_OFFSETS, *server, "--topic", topic, "--time", time)
        assert dict(re.findall(r":(\d+):(\d+)$", offsets, re.MULTILINE)) == expected
