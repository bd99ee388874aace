"""HTTP over the network port, for simulations and for talking out of turn: bytes out, answers in.

Owns one connection and the parsing of answers that say how long they are. It must not know what they mean.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tailrace.runtime.transport import Network, Transport

_BUFFER_BYTES = 64 * 1024


class HttpAnswer(NamedTuple):
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


def request(path: str, *, method: str = "GET", **headers: str) -> bytes:
    """A whole request; `_` in a header's name stands for `-`."""
    lines = [f"{method} {path} HTTP/1.1", "Host: broker"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def take_answer(data: bytearray, *, has_body: bool = True) -> HttpAnswer | None:
    """Cut the first complete answer off the received bytes; None if there is none."""
    head, separator, _ = bytes(data).partition(b"\r\n\r\n")
    if not separator:
        return None
    first, *rest = head.decode("latin-1").split("\r\n")
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1"
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    size = int(headers["content-length"]) if has_body else 0
    start = len(head) + len(separator)
    if len(data) < start + size:
        return None
    body = bytes(data[start : start + size])
    del data[: start + size]
    return HttpAnswer(int(status), headers, body)


class HttpClient:
    """One connection to an HTTP server."""

    def __init__(self) -> None:
        self.received_bytes = bytearray()
        self.is_closed = False
        self.transport: Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._news = asyncio.Event()

    @classmethod
    async def connect(cls, network: Network, host: str, port: int) -> HttpClient:
        """Open a connection; OSError where nobody answers."""
        client = cls()

        def attach(transport: Transport) -> HttpClient:
            client.transport = transport
            return client

        await network.connect(host, port, attach)
        return client

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.send([data])

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> HttpAnswer:
        """Ask for a page and wait for it."""
        self.send(request(path, method=method, **headers))
        return await self.answer(has_body=method != "HEAD")

    async def answer(self, *, has_body: bool = True) -> HttpAnswer:
        """The next answer; ConnectionError where the connection ends first."""
        while (answer := take_answer(self.received_bytes, has_body=has_body)) is None:
            if self.is_closed:
                raise ConnectionError(f"the connection ended after {bytes(self.received_bytes)!r}")
            self._news.clear()
            await self._news.wait()
        return answer

    async def closed(self) -> None:
        """Wait until the other side has ended the connection."""
        while not self.is_closed:
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        assert self.transport is not None
        self.transport.abort()

    # What the transport tells.

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self.received_bytes += memoryview(self._buffer)[:size]
        self._news.set()

    def drained(self) -> None:
        """Nothing waits for it."""

    def disconnected(self, reason: Exception | None) -> None:
        self.is_closed = True
        self._news.set()
