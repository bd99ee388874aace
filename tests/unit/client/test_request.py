"""Requests that librdkafka does not support: the error for each failure, and whether the broker may have acted."""

from __future__ import annotations

import socket

import pytest

from tailrace.client import ClientError, UnreachableError, request
from tailrace.client.errors import NoAnswerError
from tailrace.client.request import ask
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.support.brokers.broker_process import free_port
from tests.support.brokers.scripted_broker import Answer, ScriptedBroker

ANSWER = DescribeClusterResponse(cluster_id="one")


def ask_for_cluster(bootstrap: str) -> DescribeClusterResponse:
    return ask(
        bootstrap, DescribeClusterRequest(), Versions(0, 0), DescribeClusterResponse, doing="describing the cluster"
    )


def broker(answer: Answer, least: int = 0, most: int = 2) -> ScriptedBroker:
    return ScriptedBroker({DescribeClusterRequest: (least, most)}, lambda header, body: answer)


def test_the_first_address_that_answers_is_asked_and_no_other() -> None:
    with broker(ANSWER) as first, broker(ANSWER) as second:
        found = ask_for_cluster(f"127.0.0.1:{free_port()},{first.bootstrap},{second.bootstrap}")
    assert found.cluster_id == "one"
    assert (len(first.asked), len(second.asked)) == (1, 0)


def test_a_broker_that_is_lost_after_it_was_asked_may_have_acted_and_no_other_is_asked() -> None:
    with broker(None) as first, broker(ANSWER) as second:
        with pytest.raises(NoAnswerError) as caught:
            ask_for_cluster(f"{first.bootstrap},{second.bootstrap}")
        assert str(caught.value) == (
            f"lost the broker at {first.bootstrap},{second.bootstrap} while describing the cluster: "
            "the broker closed the connection"
        )
    assert second.asked == []


def test_a_broker_that_does_not_answer_in_time_may_have_acted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "REQUEST_TIMEOUT", 0.2)
    with broker(b"") as silent, pytest.raises(NoAnswerError, match="did not answer in time while describing"):
        ask_for_cluster(silent.bootstrap)


def test_what_was_never_asked_has_not_acted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "REQUEST_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableError, match="accepts connections, but sent no response") as caught:
            ask_for_cluster(address)
    assert not isinstance(caught.value, NoAnswerError)


def test_what_answers_something_else_is_no_broker() -> None:
    with (
        broker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as strange,
        pytest.raises(ClientError, match="does not answer like a Kafka broker") as caught,
    ):
        ask_for_cluster(strange.bootstrap)
    assert not isinstance(caught.value, UnreachableError)


def test_a_version_that_the_broker_does_not_serve_is_said_before_it_is_asked() -> None:
    with (
        broker(ANSWER, least=1) as newer,
        pytest.raises(
            ClientError, match=r"^describing the cluster failed: .* serves DescribeCluster in versions 1 to 2"
        ),
    ):
        ask_for_cluster(newer.bootstrap)
    assert newer.asked == []
