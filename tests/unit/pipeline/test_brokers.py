"""What queries ask brokers, and the error that a Spark user gets for each failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import SourceError, UnknownTopicError, UnreachableBrokerError
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.brokers.broker_process import free_port
from tests.support.brokers.scripted_broker import Answer, ScriptedBroker

NAME = TopicPartition("orders", 0)
LATEST = -1


def broker(
    offsets: Callable[[int], Answer], served: Mapping[type[Message], tuple[int, int]] = MappingProxyType({})
) -> ScriptedBroker:
    """Leads a partition of one topic; answers the n-th question for offsets as told."""
    asked = [0]

    def answer(header: RequestHeader, body: memoryview) -> Answer:
        if header.api_key == MetadataRequest.API_KEY:
            host, port = scripted.address
            return MetadataResponse(
                brokers=[MetadataResponseBroker(node_id=1, host=host, port=port)],
                topics=[
                    MetadataResponseTopic(
                        name="orders", partitions=[MetadataResponsePartition(partition_index=0, leader_id=1)]
                    )
                ],
            )
        asked[0] += 1
        return offsets(asked[0])

    scripted = ScriptedBroker({MetadataRequest: (0, 13), ListOffsetsRequest: (1, 10), **served}, answer)
    return scripted


def brokers_at(bootstrap: str, **more: str) -> Brokers:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return Brokers(parse_client_settings({"bootstrap.servers": bootstrap, "retry.backoff.ms": "1", **given}))


def offset(value: int, code: ErrorCode = ErrorCode.NONE) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=value)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[partition])])


def test_offsets_are_asked_for_again_until_their_leader_answers() -> None:
    answers = [offset(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), None, offset(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    with broker(lambda number: answers[number - 1] if number <= len(answers) else offset(42)) as scripted:
        brokers = brokers_at(scripted.bootstrap)
        assert brokers.offsets_at({NAME: LATEST}) == {NAME: 42}
        brokers.close()


def test_what_does_not_pass_in_time_is_an_error_that_says_what_it_was() -> None:
    with broker(lambda number: offset(-1, ErrorCode.LEADER_NOT_AVAILABLE)) as scripted:
        brokers = brokers_at(scripted.bootstrap, default_api_timeout_ms="50")
        with pytest.raises(
            SourceError,
            match=r"^looking up offsets failed: the broker returned LEADER_NOT_AVAILABLE for partition orders-0$",
        ):
            brokers.offsets_at({NAME: LATEST})
        brokers.close()


def test_a_refusal_is_an_error_at_once() -> None:
    with broker(lambda number: offset(-1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)) as scripted:
        brokers = brokers_at(scripted.bootstrap)
        with pytest.raises(
            SourceError, match="the broker returned UNSUPPORTED_FOR_MESSAGE_FORMAT for partition orders-0"
        ):
            brokers.offsets_at({NAME: LATEST})
        brokers.close()


def test_partitions_that_do_not_exist_are_unknown() -> None:
    with broker(lambda number: offset(42)) as scripted:
        brokers = brokers_at(scripted.bootstrap)
        with pytest.raises(UnknownTopicError, match=r"^partition 3 of topic 'orders' does not exist$"):
            brokers.leader_of(TopicPartition("orders", 3))
        with pytest.raises(UnknownTopicError, match=r"^partition 0 of topic 'payments' does not exist$"):
            brokers.offsets_at({TopicPartition("payments", 0): LATEST})
        brokers.close()


def test_brokers_without_a_version_that_is_known_here_are_named() -> None:
    with broker(lambda number: offset(42), {ListOffsetsRequest: (6, 10)}) as scripted:
        brokers = brokers_at(scripted.bootstrap)
        with pytest.raises(SourceError, match=f"{scripted.bootstrap} serves ListOffsets in versions 6 to 10 only"):
            brokers.offsets_at({NAME: LATEST})
        brokers.close()


def test_a_question_that_is_asked_once_is_an_error_of_the_source_where_nobody_listens() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableBrokerError, match=rf"^cannot reach a broker at {address} \(connection refused\)"):
        brokers_at(address).topic_setting("orders", "cleanup.policy")
