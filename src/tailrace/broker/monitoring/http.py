"""A small HTTP/1.1 server over the network port: GET and HEAD of a few pages, nothing else.

It serves people and scrapers on its own port and trusts them little: it limits the size of heads, ignores bodies,
accepts few connections, and drops clients that send or receive too slowly.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from tailrace.runtime.tasks import Tasks
from tailrace.runtime.transport import Listener, Network, Receiver, Transport

logger = logging.getLogger("tailrace.broker")

#: The longest request line with its headers.
MAX_HEAD_BYTES = 8192
MAX_CONNECTIONS = 64
#: How long a client may take to send a request that it has begun, or to receive a response.
PATIENCE_SECONDS = 10.0
#: How long a connection may stay without a request; scrapers return at least once a minute.
IDLE_SECONDS = 120.0
#: How long to read on after a final response: closing with unread bytes would reset the connection and lose the
#: response.
_LINGER_SECONDS = 1.0

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.(\d)")


class Content(NamedTuple):
    """The response of a page."""

    status: HTTPStatus
    content_type: str
    body: list[bytes]


Page: TypeAlias = Callable[[], Awaitable[Content]]


class _Request(NamedTuple):
    method: str
    path: str
    keeps_alive: bool
    has_body: bool


class _BadRequestError(Exception):
    pass


def plain(status: HTTPStatus, text: str) -> Content:
    """Return a response with one line of text."""
    return Content(status, "text/plain; charset=utf-8", [f"{text}\n".encode()])


def _parse(head: bytes) -> _Request:
    first, *rest = re.split(rb"\r?\n", head)
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        raise _BadRequestError("this is not an HTTP request")
    method, target, major, minor = matched.groups()
    if major != b"1":
        raise _BadRequestError("this server only supports HTTP/1.0 and HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    for line in rest:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise _BadRequestError("a header is malformed")
        headers[name.lower()] = value.strip().lower()
    wishes = [wish.strip() for wish in headers.get(b"connection", b"").split(b",")]
    keeps_alive = b"close" not in wishes and (minor != b"0" or b"keep-alive" in wishes)
    has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
    path = target.decode("latin-1").partition("?")[0].partition("#")[0]
    if "://" in path:  # absolute form, as proxies send it
        path = "/" + path.partition("://")[2].partition("/")[2]
    return _Request(method.decode(), path, keeps_alive, has_body)


class _HttpConnection:
    """One client; its requests are answered one after another."""

    def __init__(self, server: HttpServer, transport: Transport) -> None:
        self._server = server
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._filled = 0
        self._is_ending = False
        self._is_closed = False
        # Set while a partly sent response must be followed by the next request instead of the end.
        self._resumes_when_taken = False
        self._timer = self._loop.call_later(PATIENCE_SECONDS, transport.abort)

    def _wait(self, seconds: float) -> None:
        """Give the client this long for its next step."""
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._transport.abort)

    # --- calls from the transport

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)[0 if self._is_ending else self._filled :]

    def received(self, size: int) -> None:
        if self._is_ending:
            return
        if self._filled == 0:
            self._wait(PATIENCE_SECONDS)
        self._filled += size
        self._look_for_request()

    def drained(self) -> None:
        if self._resumes_when_taken and not self._is_closed:
            self._resumes_when_taken = False
            self._expect_next()

    def disconnected(self, reason: Exception | None) -> None:
        self._is_closed = True
        self._timer.cancel()
        self._server.forget(self)

    # --- requests and responses

    def _look_for_request(self) -> None:
        found = _END_OF_HEAD.search(self._buffer, 0, self._filled)
        if found is None:
            if self._filled == len(self._buffer):
                self._end_with(
                    plain(
                        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                        f"request line and headers must not exceed {MAX_HEAD_BYTES} bytes",
                    )
                )
            return
        head = bytes(self._buffer[: found.start()])
        rest = self._filled - found.end()
        self._buffer[:rest] = self._buffer[found.end() : self._filled]
        self._filled = rest
        try:
            request = _parse(head)
        except _BadRequestError as problem:
            self._end_with(plain(HTTPStatus.BAD_REQUEST, str(problem)))
            return
        self._transport.pause_reading()
        self._timer.cancel()
        self._server.tasks.spawn(self._answer(request), f"{request.method} {request.path[:80]}")

    async def _answer(self, request: _Request) -> None:
        content = await self._server.content(request.method, request.path)
        if self._is_closed:
            return
        has_content = request.method != "HEAD"
        if not request.keeps_alive or request.has_body or self._server.is_closing:
            self._end_with(content, has_content=has_content, has_more=request.has_body or self._filled > 0)
            return
        self._send(content, "keep-alive", has_content=has_content)
        if self._transport.unsent_bytes:
            self._resumes_when_taken = True
            self._wait(PATIENCE_SECONDS)
        else:
            self._expect_next()

    def _expect_next(self) -> None:
        self._wait(PATIENCE_SECONDS if self._filled else IDLE_SECONDS)
        self._transport.resume_reading()
        if self._filled:
            self._look_for_request()

    def _end_with(self, content: Content, *, has_content: bool = True, has_more: bool = True) -> None:
        """Send the final response; if the client may still be sending, read on for a moment."""
        self._is_ending = True
        self._send(content, "close", has_content=has_content)
        if self._is_closed:
            return
        if has_more:
            self._transport.resume_reading()
            self._timer.cancel()
            self._timer = self._loop.call_later(_LINGER_SECONDS, self._close)
        else:
            self._close()

    def _close(self) -> None:
        self._wait(PATIENCE_SECONDS)
        self._transport.close()

    def close(self) -> None:
        """Close the connection once the responses are sent."""
        self._close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _send(self, content: Content, connection: str, *, has_content: bool) -> None:
        status = content.status
        head = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {content.content_type}",
            f"Content-Length: {sum(map(len, content.body))}",
            "Cache-Control: no-store",
            f"Connection: {connection}",
        ]
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            head.append("Allow: GET, HEAD")
        start = ("\r\n".join(head) + "\r\n\r\n").encode()
        self._transport.send([start, *content.body] if has_content else [start])


class HttpServer:
    """Pages by path, served on one port."""

    def __init__(self, network: Network, tasks: Tasks, pages: Mapping[str, Page]) -> None:
        self.tasks = tasks
        self.is_closing = False
        self._network = network
        self._pages = pages
        self._listener: Listener | None = None
        self._connections: dict[_HttpConnection, None] = {}

    async def listen(self, host: str, port: int) -> int:
        """Start to listen, and return the port."""
        self._listener = await self._network.listen(host, port, self._accept)
        return self._listener.port

    def _accept(self, transport: Transport) -> Receiver:
        connection = _HttpConnection(self, transport)
        self._connections[connection] = None
        if len(self._connections) > MAX_CONNECTIONS:
            transport.abort()
        return connection

    def forget(self, connection: _HttpConnection) -> None:
        self._connections.pop(connection, None)

    async def content(self, method: str, path: str) -> Content:
        """Return the response to any request."""
        page = self._pages.get(path)
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, f"No such page; available: {', '.join(self._pages)}.")
        if method not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are allowed.")
        try:
            return await page()
        except Exception as error:
            logger.exception("%s %s failed", method, path, exc_info=error, extra={"repeats": "page failed"})
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """Accept no more connections and close all."""
        self.is_closing = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
