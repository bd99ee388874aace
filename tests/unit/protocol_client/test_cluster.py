"""A cluster behind several addresses: which broker is asked, for how long, and what its answers mean."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.protocol_client.cluster import Cluster, CoordinatorLocation, first_of, leader_in
from tailrace.protocol_client.errors import (
    ConnectFailedError,
    NotABrokerError,
    RefusedError,
    RetriableError,
    UnknownPartitionError,
    UnreachableClusterError,
)
from tailrace.protocol_client.handshake import open_socket
from tailrace.protocol_client.retries import retry
from tailrace.protocol_client.settings import ClusterSettings, ConnectionSettings
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader
from tailrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.brokers.broker_process import free_port
from tests.support.brokers.scripted_broker import Answer, ScriptedBroker

SERVED: dict[type[Message], tuple[int, int]] = {MetadataRequest: (0, 13), FindCoordinatorRequest: (0, 6)}
EMPTY = MetadataResponse()


def settings(bootstrap: str, **more: int) -> ClusterSettings:
    quick = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1, "first_contact_ms": 0, **more}
    return ClusterSettings(bootstrap, ConnectionSettings(request_timeout_ms=60_000), **quick)


@pytest.fixture
def start() -> Iterator[Callable[..., ScriptedBroker]]:
    """Starts brokers that give prepared answers, the last of them for ever."""
    with ExitStack() as running:

        def start(*answers: Answer) -> ScriptedBroker:
            left = list(answers)

            def answer(header: RequestHeader, body: memoryview) -> Answer:
                return left.pop(0) if len(left) > 1 else left[0]

            return running.enter_context(ScriptedBroker(SERVED, answer))

        yield start


def topics_led_by(broker: ScriptedBroker) -> MetadataResponse:
    host, port = broker.address
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=5, host=host, port=port)],
        topics=[
            MetadataResponseTopic(
                name="orders",
                partitions=[
                    MetadataResponsePartition(partition_index=0, leader_id=5),
                    MetadataResponsePartition(partition_index=1, leader_id=-1),
                    MetadataResponsePartition(partition_index=2, leader_id=6),
                ],
            ),
            MetadataResponseTopic(name="none", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ],
    )


def test_one_address_of_several_is_enough(start: Callable[..., ScriptedBroker]) -> None:
    served = start(EMPTY)
    with Cluster(settings(f"127.0.0.1:{free_port()},{served.bootstrap}")) as cluster:
        assert cluster.topics(None) == {}


def test_where_no_address_answers_each_is_named_with_its_reason() -> None:
    one, other = f"127.0.0.1:{free_port()}", "host.invalid:1"
    with Cluster(settings(f"{one},{other}")) as cluster, pytest.raises(UnreachableClusterError) as caught:
        cluster.topics(None)
    assert str(caught.value).startswith(
        f"cannot reach a broker at {one},{other} ({one}: connection refused; {other}: cannot resolve host "
    )
    assert str(caught.value).endswith("is one running? start it with: tailrace serve")


def test_what_listens_and_is_no_broker_is_said_not_to_be_one_and_not_asked_again(
    start: Callable[..., ScriptedBroker],
) -> None:
    served = start(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with (
        Cluster(settings(served.bootstrap, first_contact_ms=60_000)) as cluster,
        pytest.raises(
            NotABrokerError, match=rf"^the server at {served.bootstrap} does not answer like a Kafka broker \("
        ),
    ):
        cluster.retry(lambda: cluster.topics(None))
    assert len(served.asked) == 1


def test_a_connection_that_was_lost_is_opened_again(start: Callable[..., ScriptedBroker]) -> None:
    served = start(EMPTY, None, EMPTY)
    with Cluster(settings(served.bootstrap)) as cluster:
        cluster.topics(None)
        with pytest.raises(UnreachableClusterError, match="the broker closed the connection"):
            cluster.topics(None)
        assert cluster.topics(None) == {}
        assert cluster.connect(served.address) is cluster.connect(served.address)


def test_brokers_that_the_cluster_named_are_asked_where_the_first_one_is_gone(
    start: Callable[..., ScriptedBroker],
) -> None:
    other = start(EMPTY)
    first = start(topics_led_by(other), None)
    with Cluster(settings(first.bootstrap)) as cluster:
        assert cluster.topics(["orders"])
        assert cluster.topics(["orders"]) == {}
    assert len(other.asked) == 1


def test_topics_have_leaders_where_somebody_leads(start: Callable[..., ScriptedBroker]) -> None:
    other = start(EMPTY)
    with Cluster(settings(start(topics_led_by(other)).bootstrap)) as cluster:
        topics = cluster.topics(["orders", "none"])
    assert topics["none"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert leader_in(topics, TopicPartition("orders", 0)) == other.address
    for partition in (1, 2):
        with pytest.raises(RetriableError, match=f"^partition orders-{partition} has no leader$"):
            leader_in(topics, TopicPartition("orders", partition))
    for name in (TopicPartition("orders", 3), TopicPartition("payments", 0)):
        with pytest.raises(UnknownPartitionError, match=f"partition {name.partition} of topic '{name.topic}'"):
            leader_in(topics, name)


def coordinator(code: ErrorCode = ErrorCode.NONE) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[Coordinator(key="billing", node_id=3, host="one", port=9092, error_code=code)]
    )


def test_a_coordinator_that_starts_is_asked_for_again(start: Callable[..., ScriptedBroker]) -> None:
    served = start(
        coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE), coordinator(ErrorCode.NOT_COORDINATOR), coordinator()
    )
    with Cluster(settings(served.bootstrap)) as cluster:
        assert cluster.coordinator("billing") == CoordinatorLocation(3, ("one", 9092))
    assert len(served.asked) == 3


def test_an_answer_about_another_key_or_none_is_asked_for_again(start: Callable[..., ScriptedBroker]) -> None:
    other = FindCoordinatorResponse(coordinators=[Coordinator(key="audit", node_id=4, host="two", port=9092)])
    both = FindCoordinatorResponse(coordinators=[*other.coordinators, *coordinator().coordinators])
    served = start(FindCoordinatorResponse(), other, both)
    with Cluster(settings(served.bootstrap)) as cluster:
        assert cluster.coordinator("billing") == CoordinatorLocation(3, ("one", 9092))
    assert len(served.asked) == 3


def test_a_coordinator_that_is_refused_is_refused_at_once(start: Callable[..., ScriptedBroker]) -> None:
    served = start(coordinator(ErrorCode.INVALID_GROUP_ID), coordinator())
    with Cluster(settings(served.bootstrap)) as cluster, pytest.raises(RefusedError) as caught:
        cluster.coordinator("billing")
    assert caught.value.code == ErrorCode.INVALID_GROUP_ID
    assert str(caught.value) == "the broker returned INVALID_GROUP_ID for the coordinator of 'billing'"


def test_a_coordinator_that_does_not_come_is_given_up_with_its_last_error(
    start: Callable[..., ScriptedBroker],
) -> None:
    served = start(coordinator(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    with (
        Cluster(settings(served.bootstrap, api_timeout_ms=50)) as cluster,
        pytest.raises(RetriableError, match="COORDINATOR_LOAD_IN_PROGRESS"),
    ):
        cluster.coordinator("billing")
    assert len(served.asked) > 1


def test_a_cluster_that_was_reached_is_waited_for_longer(start: Callable[..., ScriptedBroker]) -> None:
    served = start(EMPTY, None, None, None, EMPTY)
    with Cluster(settings(served.bootstrap, api_timeout_ms=60_000)) as cluster:
        cluster.topics(None)
        assert cluster.retry(lambda: cluster.topics(None)) == {}
    other = start(None, EMPTY)
    with (
        Cluster(settings(other.bootstrap, api_timeout_ms=60_000)) as cluster,
        pytest.raises(UnreachableClusterError),
    ):
        cluster.retry(lambda: cluster.topics(None))
    with Cluster(settings(other.bootstrap, api_timeout_ms=60_000), reached=True) as cluster:
        assert cluster.retry(lambda: cluster.topics(None)) == {}


def test_one_more_look_is_taken_when_the_time_is_up() -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        raise RetriableError("not yet")

    with pytest.raises(RetriableError, match="not yet"):
        retry(look, lambda error: 0.02, pause=60.0)
    assert len(looks) == 2


def test_addresses_share_the_time_that_there_is() -> None:
    def attempt(address: tuple[str, int], left: float) -> None:
        raise ConnectFailedError("refused")

    with pytest.raises(UnreachableClusterError, match="a:1: not tried, no time was left; b:2: not tried"):
        first_of("a:1,b:2", [("a", 1), ("b", 2)], attempt, 0.0)


def test_an_accepted_connection_is_enough_to_be_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
        first_of("here", [("127.0.0.1", free_port()), address], open_socket, 60.0).close()
