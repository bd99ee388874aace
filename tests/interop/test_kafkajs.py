"""kafkajs against a real broker: the common specification, and what is its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.conftest import Broker
from tests.interop.node_specification import NodeSpecification
from tests.support.clients.node_client import NodeBridge, NodeClient
from tests.support.records import INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, Record, RefusedError
from tests.support.topics import topic_names


@pytest.fixture
def client(broker: Broker, kafkajs_bridge: NodeBridge) -> NodeClient:
    return NodeClient(broker.bootstrap, kafkajs_bridge)


class TestKafkajs(NodeSpecification):
    sends_null_headers = False

    @pytest.fixture
    def bridge(self, kafkajs_bridge: NodeBridge) -> NodeBridge:
        return kafkajs_bridge


def test_a_topic_is_not_created_twice(client: NodeClient, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    assert client.call("create", topic=name, partitions=1, configs={}) is True
    # kafkajs treats TOPIC_ALREADY_EXISTS as an answer and not as an error.
    assert client.call("create", topic=name, partitions=1, configs={}) is False


def test_validating_a_topic_creates_nothing(client: NodeClient, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    assert client.call("create", topic=name, partitions=1, configs={}, validate_only=True) is True
    assert name not in topic_names(client.bootstrap)


def test_a_topic_with_an_invalid_name_is_refused(client: NodeClient) -> None:
    with pytest.raises(RefusedError) as refused:
        client.call("create", topic="no spaces allowed", partitions=1, configs={})
    assert refused.value.code == INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("operation", ["delete", "describe"])
def test_an_unknown_topic_is_named_as_such(client: NodeClient, operation: str) -> None:
    with pytest.raises(RefusedError) as refused:
        client.call(operation, topic="never-created", patience_ms=1000)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_producing_to_an_unknown_topic_says_why(
    kafkajs_bridge: NodeBridge, strict_broker: Broker, topic_name: Callable[[], str]
) -> None:
    client = NodeClient(strict_broker.bootstrap, kafkajs_bridge)
    with pytest.raises(RefusedError) as refused:
        client.produce(topic_name(), [Record(b"hello")], patience_ms=1000)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
