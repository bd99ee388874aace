"""One connection to one broker: requests overtake answers, and every way to fail says what is wrong."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.errors import (
    ConnectFailedError,
    ConnectionLostError,
    MalformedAnswerError,
    NoAnswerInTimeError,
    UnsupportedVersionError,
)
from tailrace.protocol_client.settings import ConnectionSettings
from tailrace.protocol_client.versions import Versions
from tailrace.wire.frames import RequestHeader
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.brokers.broker_process import free_port
from tests.support.brokers.scripted_broker import Answer, ScriptedBroker, frame_of

METADATA = Versions(1, 10)
PATIENT = ConnectionSettings(client_id="tests", request_timeout_ms=60_000)
HURRIED = ConnectionSettings(client_id="tests", request_timeout_ms=200)


def cluster_named(name: str) -> MetadataResponse:
    return MetadataResponse(cluster_id=name)


def broker(
    answer: Callable[[RequestHeader, memoryview], Answer], most: int = 13, *, newest_greeting: int = 4
) -> ScriptedBroker:
    return ScriptedBroker({MetadataRequest: (0, most)}, answer, newest_greeting=newest_greeting)


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """An address that accepts one connection and treats it in its own way."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[:2]
        finally:
            thread.join()


def test_the_newest_version_that_the_broker_serves_is_spoken_under_the_clients_name() -> None:
    with (
        broker(lambda header, body: cluster_named("one"), most=5) as served,
        BrokerConnection(served.address, PATIENT) as connection,
    ):
        assert connection.ask(MetadataRequest(topics=None), METADATA, MetadataResponse).cluster_id == "one"
    assert [(header.api_version, header.client_id) for header in served.asked] == [(5, "tests")]


def test_a_broker_that_does_not_know_the_newest_greeting_is_greeted_in_the_oldest() -> None:
    with (
        broker(lambda header, body: cluster_named("old"), most=4, newest_greeting=0) as served,
        BrokerConnection(served.address, PATIENT) as connection,
    ):
        assert connection.version_of(MetadataRequest, METADATA) == 4


def test_what_a_broker_does_not_serve_is_not_asked() -> None:
    with (
        broker(lambda header, body: cluster_named("one")) as served,
        BrokerConnection(served.address, PATIENT) as connection,
        pytest.raises(UnsupportedVersionError, match=f"{served.bootstrap} serves no InitProducerId at all"),
    ):
        connection.ask(InitProducerIdRequest(), Versions(0, 1), InitProducerIdResponse)
    assert served.asked == []


def test_requests_may_be_sent_before_earlier_ones_are_answered() -> None:
    everything_sent = threading.Event()

    def answer(header: RequestHeader, body: memoryview) -> Answer:
        assert everything_sent.wait(60)
        return cluster_named(str(header.correlation_id))

    with broker(answer) as served, BrokerConnection(served.address, PATIENT) as connection:
        for version in (9, 1, 10):
            connection.send(MetadataRequest(topics=None), 7 if version == 1 else version)
        everything_sent.set()
        found = [connection.receive_as(MetadataResponse, version).cluster_id for version in (9, 7, 10)]
    # Correlation id 1 was the greeting's.
    assert found == ["2", "3", "4"]


def test_a_body_in_thousands_of_pieces_arrives_whole() -> None:
    pieces = [bytes([number % 251]) * (number % 700) for number in range(5000)]
    bodies: list[bytes] = []

    def answer(header: RequestHeader, body: memoryview) -> Answer:
        bodies.append(bytes(body))
        return cluster_named("one")

    with broker(answer) as served, BrokerConnection(served.address, PATIENT) as connection:
        connection.send_pieces(MetadataRequest.API_KEY, 5, pieces)
        connection.receive_as(MetadataResponse, 5)
    assert bodies == [b"".join(pieces)]


def test_where_nobody_listens_the_connection_is_refused() -> None:
    with pytest.raises(ConnectFailedError, match=r"^connection refused$"):
        BrokerConnection(("127.0.0.1", free_port()), PATIENT)


@pytest.mark.parametrize("host", ["host.invalid", "a" * 70 + ".invalid"])
def test_a_host_that_does_not_exist_is_named(host: str) -> None:
    with pytest.raises(ConnectFailedError, match=f"^cannot resolve host '{host}': "):
        BrokerConnection((host, 9092), PATIENT)


def test_a_port_that_expects_tls_is_said_to_do_so() -> None:
    def serve(connection: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(connection, server_side=True)

    with (
        listener(serve) as address,
        pytest.raises(ConnectFailedError, match=r"before it sent any response; does it expect TLS\?$"),
    ):
        BrokerConnection(address, PATIENT)


def test_bytes_of_other_protocols_are_no_answer() -> None:
    for data, words in (
        (b"\x15\x03\x01\x00\x02\x02\x46", "it expects TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "it speaks SSH"),
        (b"220 mail.example.org", f"response of {int.from_bytes(b'220 ', 'big')} bytes, which is impossible"),
        (b"\xff\xff\xff\xff", "response of -1 bytes, which is impossible"),
    ):

        def serve(connection: socket.socket, data: bytes = data) -> None:
            connection.recv(1000)
            connection.sendall(data)

        with listener(serve) as address, pytest.raises(MalformedAnswerError, match=f"^{words}$"):
            BrokerConnection(address, PATIENT)


def test_a_listener_that_closes_before_it_answers_may_expect_tls() -> None:
    with (
        listener(lambda connection: None) as address,
        pytest.raises(ConnectFailedError, match="before it sent any response; does it expect TLS"),
    ):
        BrokerConnection(address, PATIENT)


def _wait_for_end(connection: socket.socket) -> None:
    while connection.recv(1000):
        pass


def test_a_listener_that_never_says_a_word_is_given_up() -> None:
    with (
        listener(_wait_for_end) as address,
        pytest.raises(ConnectFailedError, match=r"^it accepts connections, but sent no response within 0\.2 s$"),
    ):
        BrokerConnection(address, HURRIED)


def test_a_broker_that_closes_in_the_middle_of_an_answer_is_lost() -> None:
    sent = threading.Event()

    def answer(header: RequestHeader, body: memoryview) -> Answer:
        if sent.is_set():
            return None
        sent.set()
        return frame_of(cluster_named("one"), 9, header.correlation_id, has_tags=True)[:-3]

    with broker(answer) as served, BrokerConnection(served.address, PATIENT) as connection:
        connection.send(MetadataRequest(topics=None), 9)
        connection.send(MetadataRequest(topics=None), 9)
        with pytest.raises(ConnectionLostError, match=r"^the broker closed the connection$"):
            connection.receive()


def test_an_answer_that_does_not_come_in_time_is_an_error_of_its_own() -> None:
    over = threading.Event()

    def answer(header: RequestHeader, body: memoryview) -> Answer:
        assert over.wait(60)
        return None

    with broker(answer) as served, BrokerConnection(served.address, HURRIED) as connection:
        with pytest.raises(NoAnswerInTimeError, match=r"^no response within 0\.2 s$"):
            connection.ask(MetadataRequest(topics=None), METADATA, MetadataResponse)
        over.set()


def test_an_answer_to_another_request_is_refused() -> None:
    def answer(header: RequestHeader, body: memoryview) -> Answer:
        return frame_of(cluster_named("one"), header.api_version, 4711, has_tags=True)

    with (
        broker(answer) as served,
        BrokerConnection(served.address, PATIENT) as connection,
        pytest.raises(MalformedAnswerError, match=r"^received the response to request 4711 instead of 2$"),
    ):
        connection.ask(MetadataRequest(topics=None), METADATA, MetadataResponse)


def test_a_body_that_ends_too_early_is_refused() -> None:
    def answer(header: RequestHeader, body: memoryview) -> Answer:
        data = struct.pack(">i", header.correlation_id) + b"\0" + b"\x01"
        return struct.pack(">i", len(data)) + data

    with (
        broker(answer) as served,
        BrokerConnection(served.address, PATIENT) as connection,
        pytest.raises(MalformedAnswerError),
    ):
        connection.ask(MetadataRequest(topics=None), METADATA, MetadataResponse)
