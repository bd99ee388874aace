"""Connections between brokers: frames of any size in any pieces, answers in order, and how they end."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from tailrace.broker.network.peer import Backoff, PeerConnection
from tailrace.runtime.system.network import SystemNetwork
from tailrace.runtime.transport import Receiver, Transport
from tailrace.testing.client import KafkaClient
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.response_header import encode_response_header
from tests.unit.broker.memory_transport import MemoryTransport

VERSION = 9


class OneConnection:
    """A network that gives every caller the same transport in memory."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()

    async def connect(self, host: str, port: int, factory: object) -> Transport:
        self.transport.receiver = factory(self.transport)  # type: ignore[operator]
        return self.transport

    async def listen(self, host: str, port: int, factory: object) -> object:
        raise NotImplementedError


async def connected(kind: type[PeerConnection] = PeerConnection) -> tuple[PeerConnection, MemoryTransport]:
    network = OneConnection()
    return await kind.connect(network, "host", 9092, "a test"), network.transport  # type: ignore[arg-type]


def answer(correlation_id: int, body: bytes) -> bytes:
    frame = encode_response_header(correlation_id, flexible=True) + body
    return len(frame).to_bytes(4, "big") + frame


def ask(connection: PeerConnection) -> asyncio.Future[memoryview]:
    return connection.send(MetadataRequest(topics=None), VERSION)


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 7, 1000, 65_536, 1 << 20])
@pytest.mark.parametrize("sizes", [[0], [1, 2, 3], [10, 100_000, 5], [65_527, 65_528, 65_529, 1], [300_000, 200_000]])
def test_answers_of_any_size_arrive_whole_in_any_pieces(sizes: list[int], piece: int) -> None:
    async def test() -> None:
        connection, transport = await connected()
        bodies = [Random(size).randbytes(size) for size in sizes]
        futures = [ask(connection) for _ in bodies]
        stream = b"".join(answer(number, body) for number, body in enumerate(bodies, 1))
        transport.deliver(stream, max(piece, len(stream) // 2000))
        assert [bytes(await future) for future in futures] == bodies

    asyncio.run(test())


def test_memory_that_is_given_back_is_used_for_the_next_large_answer() -> None:
    async def test() -> None:
        connection, transport = await connected()
        bodies = [Random(number).randbytes(200_000 - number) for number in range(3)]
        first = ask(connection)
        transport.deliver(answer(1, bodies[0]))
        kept = await first
        connection.give_back(kept)
        second = ask(connection)
        transport.deliver(answer(2, bodies[1]))
        assert (await second).obj is kept.obj
        assert bytes(await second) == bodies[1]
        # What was not given back is nobody else's.
        third = ask(connection)
        transport.deliver(answer(3, bodies[2]))
        assert (await third).obj is not kept.obj
        assert bytes(await second) == bodies[1]
        assert bytes(await third) == bodies[2]

    asyncio.run(test())


@pytest.mark.parametrize(
    "malformed",
    [
        answer(2, b""),
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\2ab",
        answer(1, b"") + answer(2, b""),
    ],
    ids=["another's answer", "a negative length", "a length beyond all bounds", "no header", "one answer too many"],
)
def test_what_is_no_answer_ends_the_connection(malformed: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        connection, transport = await connected()
        future = ask(connection)
        with caplog.at_level(logging.ERROR):
            transport.deliver(malformed)
        assert transport.is_closed
        assert "closed the connection" in caplog.text
        transport.disconnect()
        if not (future.done() and future.exception() is None):
            with pytest.raises(ConnectionError):
                await future
        assert not connection.is_open

    asyncio.run(test())


def test_a_client_under_test_takes_an_answer_out_of_order_for_a_fault() -> None:
    async def test() -> None:
        connection, transport = await connected(KafkaClient)
        ask(connection).cancel()
        with pytest.raises(AssertionError, match="response 5 arrived when 1 was due"):
            transport.deliver(answer(5, b""))

    asyncio.run(test())


def test_a_lost_connection_fails_everything_that_has_no_answer() -> None:
    async def test() -> None:
        connection, transport = await connected()
        futures = [ask(connection) for _ in range(3)]
        transport.deliver(answer(1, b"x"))
        transport.disconnect()
        assert bytes(await futures[0]) == b"x"
        for future in futures[1:]:
            with pytest.raises(ConnectionError, match="the other side closed it"):
                await future
        with pytest.raises(ConnectionError, match="not connected"):
            await ask(connection)

    asyncio.run(test())


def test_no_answer_in_time_closes_the_connection() -> None:
    async def test() -> None:
        connection, transport = await connected()
        with pytest.raises(ConnectionError, match=r"no response within 0.01 s"):
            await connection.call(MetadataRequest(topics=None), VERSION, MetadataResponse, 0.01)
        assert transport.is_closed

    asyncio.run(test())


def test_a_malformed_body_ends_the_connection_like_any_other_failure_of_it() -> None:
    async def test() -> None:
        connection, transport = await connected()
        asking = asyncio.ensure_future(connection.call(MetadataRequest(topics=None), VERSION, MetadataResponse))
        await asyncio.sleep(0)
        transport.deliver(answer(1, b"\xff"))
        with pytest.raises(ConnectionError, match="malformed response"):
            await asking
        assert transport.is_closed

    asyncio.run(test())


class _Silent:
    """Takes connections and says nothing."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def lend_buffer(self) -> memoryview:
        return memoryview(bytearray(1024))

    def received(self, size: int) -> None:
        pass

    def drained(self) -> None:
        pass

    def disconnected(self, reason: Exception | None) -> None:
        pass


def test_over_a_real_socket_a_silent_broker_and_a_closed_port_are_noticed() -> None:
    async def test() -> None:
        network = SystemNetwork()

        def silent(transport: Transport) -> Receiver:
            return _Silent(transport)

        listener = await network.listen("127.0.0.1", 0, silent)
        connection = await PeerConnection.connect(network, "127.0.0.1", listener.port, "a test", 5.0)
        assert connection.is_open
        with pytest.raises(ConnectionError):
            await connection.call(MetadataRequest(topics=None), VERSION, MetadataResponse, 0.05)
        listener.close()
        with pytest.raises(OSError):
            await PeerConnection.connect(network, "127.0.0.1", listener.port, "a test", 5.0)

    asyncio.run(test())


def test_pauses_grow_to_a_bound_differ_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(Random(1), 0.1, 1.0)
    pauses = [backoff.failed() for _ in range(100)]
    for pause, usual in zip(pauses, [0.1, 0.2, 0.4, 0.8] + [1.0] * 96, strict=True):
        assert 0.8 * usual <= pause <= 1.2 * usual
    assert len(dict.fromkeys(pauses)) == 100
    backoff.succeeded()
    assert backoff.failed() <= 0.12
    assert backoff.after(10_000) <= 1.2


def test_a_bound_below_the_first_pause_holds() -> None:
    assert Backoff(Random(1), 0.5, 0.001).failed() <= 0.0012
