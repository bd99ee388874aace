"""Brokers are asked for a topic's lineage; if they do not know lineages, its id counts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tailrace.errors import ErrorCode
from tailrace.model import Lineage, TopicId, TopicPartition
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import UnknownTopicError
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.options import Selection
from tailrace.protocol_client.cluster import Cluster
from tailrace.protocol_client.settings import ClusterSettings
from tailrace.protocol_client.versions import Versions
from tailrace.storage.checkpoints import encode_uuid
from tailrace.wire.codec import Message
from tailrace.wire.messages.describe_configs import (
    LINEAGE_KEY,
    TOPIC_ID_KEY,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ORDERS = TopicPartition("orders", 0)
FIRST, SECOND, OTHER = (UUID(int=number) for number in (1, 2, 3))


class Answers(Cluster):
    """Brokers that answer two questions, and count the second."""

    def __init__(self, settings: ClusterSettings) -> None:
        super().__init__(settings)
        self.topic_id = TopicId(FIRST)
        self.lineage: Lineage | None = Lineage(FIRST)
        #: What is told of the topic by brokers that are behind, before they have heard of the newest id.
        self.late: list[list[DescribeConfigsResourceResult] | ErrorCode] = []
        self.questions = 0

    def ask_any(self, request: Message, usable: Versions, kind: type[Any]) -> Any:
        if isinstance(request, MetadataRequest):
            partition = MetadataResponsePartition(partition_index=0, leader_id=1)
            topic = MetadataResponseTopic(name="orders", topic_id=self.topic_id, partitions=[partition])
            broker = MetadataResponseBroker(node_id=1, host="nowhere", port=1, rack=None)
            return MetadataResponse(brokers=[broker], topics=[topic])
        assert isinstance(request, DescribeConfigsRequest)
        (resource,) = request.resources
        assert resource.configuration_keys == [TOPIC_ID_KEY, LINEAGE_KEY]
        self.questions += 1
        result = DescribeConfigsResult(resource_type=2, resource_name="orders", error_message=None)
        told = self.late.pop(0) if self.late else identity(self.topic_id, self.lineage)
        if isinstance(told, ErrorCode):
            result.error_code = told
        else:
            result.configs = told
        return DescribeConfigsResponse(results=[result])


class Reader(Brokers):
    """What a query sees of them."""

    def __init__(self) -> None:
        settings = parse_client_settings({"bootstrap.servers": "nowhere:1", "retry.backoff.ms": "1"})
        super().__init__(settings)
        self._cluster = self.answers = Answers(settings.cluster)

    def found(self) -> Lineage:
        return self.partitions(Selection(topics=("orders",)))[ORDERS]


def identity(topic_id: TopicId, lineage: Lineage | None) -> list[DescribeConfigsResourceResult]:
    if lineage is None:
        return []
    values = {TOPIC_ID_KEY: encode_uuid(topic_id), LINEAGE_KEY: encode_uuid(lineage)}
    return [DescribeConfigsResourceResult(name=key, value=value) for key, value in values.items()]


def test_a_topic_with_another_id_is_the_same_and_each_id_is_asked_about_once() -> None:
    reader = Reader()
    cluster = reader.answers
    assert reader.found() == reader.found() == FIRST
    assert cluster.questions == 1
    cluster.topic_id = TopicId(SECOND)
    assert reader.found() == reader.found() == FIRST
    assert cluster.questions == 2
    assert not reader.is_replaced("orders", Lineage(FIRST))
    assert reader.is_replaced("orders", Lineage(OTHER))


def test_with_brokers_that_know_no_lineages_the_id_counts() -> None:
    reader = Reader()
    cluster = reader.answers
    cluster.lineage = None
    assert reader.found() == FIRST
    cluster.topic_id = TopicId(SECOND)
    assert reader.found() == SECOND
    assert reader.is_replaced("orders", Lineage(FIRST))


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_with_brokers_that_refuse_to_tell_the_id_counts(code: ErrorCode) -> None:
    reader = Reader()
    cluster = reader.answers
    cluster.late = [code]
    assert reader.found() == FIRST


def test_a_broker_that_is_behind_is_asked_again() -> None:
    reader = Reader()
    cluster = reader.answers
    cluster.topic_id = TopicId(SECOND)
    cluster.late = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, identity(TopicId(FIRST), Lineage(FIRST))]
    assert reader.found() == FIRST
    assert cluster.questions == 3


@pytest.mark.parametrize("lineage", ["orders", "AAAA", "="])
def test_a_broker_that_tells_no_id_as_the_lineage_is_asked_again(lineage: str) -> None:
    reader = Reader()
    cluster = reader.answers
    cluster.late = [
        [
            DescribeConfigsResourceResult(name=TOPIC_ID_KEY, value=encode_uuid(TopicId(FIRST))),
            DescribeConfigsResourceResult(name=LINEAGE_KEY, value=lineage),
        ]
    ]
    assert reader.found() == FIRST
    assert cluster.questions == 2


def test_a_task_asks_only_where_the_id_is_not_the_lineage_that_it_expects() -> None:
    reader = Reader()
    cluster = reader.answers
    assert reader.leader_of(ORDERS, Lineage(FIRST)) == ("nowhere", 1)
    assert not reader.is_replaced("orders", Lineage(FIRST))
    assert cluster.questions == 0
    cluster.topic_id = TopicId(SECOND)
    assert reader.leader_of(ORDERS, Lineage(FIRST)) == ("nowhere", 1)
    assert cluster.questions == 1
    with pytest.raises(UnknownTopicError, match="was deleted and created again"):
        reader.leader_of(ORDERS, Lineage(OTHER))
