"""@platformatic/kafka against a real broker: the common specification, and what is its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import Broker
from tests.interop.node_specification import NodeSpecification
from tests.support.clients.node_client import NodeBridge, NodeClient
from tests.support.records import (
    INVALID_CONFIG,
    INVALID_TOPIC_EXCEPTION,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Record,
    RefusedError,
)
from tests.support.topics import create_topic


@pytest.fixture
def client(broker: Broker, platformatic_bridge: NodeBridge) -> NodeClient:
    return NodeClient(broker.bootstrap, platformatic_bridge)


class TestPlatformatic(NodeSpecification):
    @pytest.fixture
    def bridge(self, platformatic_bridge: NodeBridge) -> NodeBridge:
        return platformatic_bridge


def test_a_topic_is_not_created_twice_and_keeps_its_id(client: NodeClient, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    created = client.call("create", topic=name, partitions=2, configs={"retention.ms": "3600000"})
    assert (created["name"], created["partitions"], created["replicas"]) == (name, 2, 1)
    assert created["configuration"]["retention.ms"] == "3600000"
    assert uuid.UUID(created["id"]).int != 0
    assert client.call("describe", topic=name)["id"] == created["id"]
    with pytest.raises(RefusedError) as refused:
        client.call("create", topic=name, partitions=2, configs={})
    assert refused.value.code == TOPIC_ALREADY_EXISTS


def test_a_topic_with_an_invalid_name_is_refused(client: NodeClient) -> None:
    with pytest.raises(RefusedError) as refused:
        client.call("create", topic="no/slashes/allowed", partitions=1, configs={})
    assert refused.value.code == INVALID_TOPIC_EXCEPTION


def test_deleting_an_unknown_topic_says_so(client: NodeClient) -> None:
    with pytest.raises(RefusedError) as refused:
        client.call("delete", topic="never-created", patience_ms=1000)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_producing_to_an_unknown_topic_says_why(
    platformatic_bridge: NodeBridge, strict_broker: Broker, topic_name: Callable[[], str]
) -> None:
    client, name = NodeClient(strict_broker.bootstrap, platformatic_bridge), topic_name()
    # The client replaces the broker's error code 3 by its own words.
    with pytest.raises(RefusedError, match=f"Unknown topic {name}"):
        client.produce(name, [Record(b"hello")], patience_ms=1000)


def test_single_entries_of_a_configuration_are_set_and_deleted(
    client: NodeClient, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(client.bootstrap, topic_name(), retention_ms="3600000")

    def change(operation: str, **entry: str) -> None:
        client.call("incremental_alter_configs", topic=topic, changes=[{"operation": operation, **entry}])

    change("SET", name="max.message.bytes", value="2000")
    configs = client.call("describe", topic=topic)["configs"]
    assert (configs["max.message.bytes"], configs["retention.ms"]) == ("2000", "3600000")
    change("APPEND", name="cleanup.policy", value="compact")
    assert client.call("describe", topic=topic)["configs"]["cleanup.policy"] == "delete,compact"
    change("SUBTRACT", name="cleanup.policy", value="delete")
    assert client.call("describe", topic=topic)["configs"]["cleanup.policy"] == "compact"
    change("DELETE", name="max.message.bytes")
    assert client.call("describe", topic=topic)["configs"]["max.message.bytes"] == "1048588"
    with pytest.raises(RefusedError) as refused:
        change("SET", name="retention.ms", value="soon")
    assert refused.value.code == INVALID_CONFIG


def test_the_log_directory_tells_the_size_of_a_partition(
    client: NodeClient, data_dir: Path, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(client.bootstrap, topic_name(), partitions=2)
    client.produce(topic, [Record(b"x" * 500, partition=1)])
    size = (data_dir / f"{topic}-1" / f"{0:020}.log").stat().st_size
    described = client.call("describe_log_dirs", topic=topic, partitions=[0, 1])
    assert sorted(described) == [[str(data_dir), topic, 0, 0], [str(data_dir), topic, 1, size]]
