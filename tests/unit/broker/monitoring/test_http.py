"""The HTTP server answers requests in order, however they arrive, and drops misbehaving clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import pytest

from tailrace.broker.monitoring.http import MAX_CONNECTIONS, MAX_HEAD_BYTES, Content, HttpServer, plain
from tailrace.runtime.system.network import SystemNetwork
from tailrace.runtime.tasks import Tasks
from tests.support.network.http_client import HttpAnswer, request, take_answer
from tests.unit.broker.memory_transport import MemoryTransport


class Served:
    """A server of three pages, and one client of it."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.tasks = Tasks(self.failures.append)
        pages = {"/page": self.page, "/slow": self.slow, "/broken": self.broken}
        self.server = HttpServer(SystemNetwork(), self.tasks, pages)
        self.slow_may_end = asyncio.Event()
        self.transport = self.connect()

    def connect(self) -> MemoryTransport:
        transport = MemoryTransport()
        transport.receiver = self.server._accept(transport)
        return transport

    async def page(self) -> Content:
        return plain(HTTPStatus.OK, "hello")

    async def slow(self) -> Content:
        await self.slow_may_end.wait()
        return plain(HTTPStatus.OK, "at last")

    async def broken(self) -> Content:
        raise RuntimeError("a page that fails")

    async def ask(self, data: bytes, *, piece: int = 1 << 20, has_body: bool = True) -> HttpAnswer:
        """Send bytes and wait for the one answer to them."""
        self.transport.deliver(data, piece)
        await settle()
        received = bytearray(self.transport.sent)
        self.transport.sends.clear()
        answer = take_answer(received, has_body=has_body)
        assert answer is not None
        assert received == b"", "more than one answer"
        return answer


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        served = Served()
        try:
            await test(served)
        finally:
            await served.tasks.cancel()
            for connection in list(served.server._connections):
                connection.disconnected(None)
        assert served.failures == []

    asyncio.run(main())


@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
def test_a_page_is_answered_however_its_request_is_cut(piece: int) -> None:
    async def test(served: Served) -> None:
        for _ in range(3):
            answer = await served.ask(request("/page", Accept="*/*"), piece=piece)
            assert (answer.status, answer.body) == (200, b"hello\n")
            assert answer.headers["connection"] == "keep-alive"
        assert served.transport.is_reading

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /page?x=1#y HTTP/1.1\r\n\r\n",
        b"GET http://somewhere:80/page HTTP/1.1\r\nHost: somewhere\r\n\r\n",
        b"GET /page HTTP/1.1\nHost: a\n\n",
        b"GET /page HTTP/1.1\r\nX-Empty:\r\nConnection: Keep-Alive\r\n\r\n",
    ],
)
def test_requests_of_many_shapes_are_understood(data: bytes) -> None:
    async def test(served: Served) -> None:
        assert (await served.ask(data)).status == 200
        assert not served.transport.is_closed

    run(test)


def test_head_has_the_headers_of_get_and_no_body() -> None:
    async def test(served: Served) -> None:
        got = await served.ask(request("/page"))
        head = await served.ask(request("/page", method="HEAD"), has_body=False)
        assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    run(test)


def test_an_unknown_path_is_told_of_those_there_are() -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(request("/nothing"))
        assert answer.status == 404
        assert b"/page" in answer.body
        assert not served.transport.is_closed

    run(test)


def test_other_methods_are_refused() -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(request("/page", method="DELETE"))
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")

    run(test)


def test_a_page_that_fails_is_an_error_of_the_server_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(request("/broken"))
        assert answer.status == 500
        assert b"a page that fails" in answer.body
        assert (await served.ask(request("/page"))).status == 200

    run(test)
    assert "/broken failed" in caplog.text


@pytest.mark.parametrize(
    "data",
    [b"GET /page HTTP/1.0\r\n\r\n", b"GET /page HTTP/1.1\r\nConnection: close\r\n\r\n"],
)
def test_the_connection_ends_where_the_client_wants_it_to(data: bytes) -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(data)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert served.transport.is_closed

    run(test)


def test_pipelined_requests_are_answered_one_after_another() -> None:
    async def test(served: Served) -> None:
        transport = served.transport
        transport.deliver(request("/page") + request("/slow") + request("/nothing") + request("/page", method="HEAD"))
        await settle()
        received = bytearray(transport.sent)
        first = take_answer(received)
        assert first is not None
        assert first.body == b"hello\n"
        assert received == b""
        assert not transport.is_reading
        served.slow_may_end.set()
        await settle()
        received = bytearray(transport.sent)
        statuses = []
        for has_body in (True, True, True, False):
            answer = take_answer(received, has_body=has_body)
            assert answer is not None
            statuses.append(answer.status)
        assert statuses == [200, 200, 404, 200]
        assert transport.is_reading

    run(test)


def test_a_client_that_goes_away_while_it_waits_harms_nothing() -> None:
    async def test(served: Served) -> None:
        served.transport.deliver(request("/slow"))
        await settle()
        served.transport.disconnect()
        served.slow_may_end.set()
        await settle()
        assert served.transport.sent == b""
        other = served.connect()
        other.deliver(request("/page"))
        await settle()
        assert b"hello" in other.sent

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\0\x01\0\n\n",
        b"GET /page\r\n\r\n",
        b"GET /page HTTP/2.0\r\n\r\n",
        b"GET /page HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /page HTTP/1.1\r\n folded: line\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(data: bytes) -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(data)
        assert (answer.status, answer.headers["connection"]) == (400, "close")

    run(test)


def test_a_head_without_end_is_refused_and_no_memory_is_taken_for_it() -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(b"GET /page HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES - 23))
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        served.transport.deliver(b"x" * (10 * MAX_HEAD_BYTES))
        await settle()
        assert served.transport.sent == b"", "it was answered twice"

    run(test)


@pytest.mark.parametrize("header", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_a_request_with_a_body_is_answered_for_the_last_time(header: str) -> None:
    async def test(served: Served) -> None:
        answer = await served.ask(f"GET /page HTTP/1.1\r\n{header}\r\n\r\nGET /page HTTP/1.1\r\n\r\n".encode())
        assert (answer.status, answer.headers["connection"]) == (200, "close")

    run(test)


def test_connections_are_few() -> None:
    async def test(served: Served) -> None:
        others = [served.connect() for _ in range(MAX_CONNECTIONS - 1)]
        assert not any(transport.is_closed for transport in others)
        one_too_many = served.connect()
        assert one_too_many.is_closed
        one_too_many.disconnect()
        others[0].disconnect()
        assert not served.connect().is_closed

    run(test)
