"""A Kafka client over the network port, for simulations: one connection, requests answered in order.

Owns frames and correlation ids. It retries nothing and hides nothing: a lost connection is a `ConnectionError`
for every request that had no answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TypeVar

from tailrace.runtime.transport import Network, Transport
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request

Response = TypeVar("Response", bound=Message)

_LENGTH_BYTES = 4
_BUFFER_BYTES = 64 * 1024


class KafkaClient:
    """One connection to one broker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._received = bytearray()
        self._waiting: deque[tuple[int, bool, asyncio.Future[memoryview]]] = deque()
        self._correlation_id = 0
        self._lost: Exception | None = None

    @classmethod
    async def connect(cls, network: Network, host: str, port: int, name: str) -> KafkaClient:
        """Open a connection; OSError where nobody answers."""
        client = cls(name)

        def attach(transport: Transport) -> KafkaClient:
            client._transport = transport
            return client

        await network.connect(host, port, attach)
        return client

    def send(self, request: Message, version: int) -> asyncio.Future[memoryview]:
        """Send a request; the future is the body of its response."""
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self._lost is not None or self._transport is None:
            future.set_exception(ConnectionError(f"{self._name} is not connected"))
            return future
        self._correlation_id += 1
        is_flexible = request.is_flexible(version)
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._name)
        flexible_response = is_flexible and request.API_KEY != ApiKey.API_VERSIONS
        self._waiting.append((self._correlation_id, flexible_response, future))
        self._transport.send([encode_request(header, is_flexible, request.encode(version))])
        return future

    async def call(self, request: Message, version: int, response: type[Response], seconds: float = 30.0) -> Response:
        """Send a request and decode its response."""
        try:
            async with asyncio.timeout(seconds):
                return response.decode(version, await self.send(request, version))
        except TimeoutError:
            self.close()
            raise ConnectionError(f"{self._name} had no answer in {seconds} s") from None

    def close(self) -> None:
        if self._transport is not None and self._lost is None:
            self._transport.abort()

    # --- what the transport tells

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self._received += memoryview(self._buffer)[:size]
        while len(self._received) >= _LENGTH_BYTES:
            (length,) = struct.unpack_from(">i", self._received)
            end = _LENGTH_BYTES + length
            if len(self._received) < end:
                return
            frame = memoryview(bytes(self._received[_LENGTH_BYTES:end]))
            del self._received[:end]
            expected, flexible, future = self._waiting.popleft()
            correlation_id, position = decode_response_header(frame, flexible)
            if correlation_id != expected:
                raise AssertionError(f"answer {correlation_id} came where {expected} was due")
            if not future.done():
                future.set_result(frame[position:])

    def drained(self) -> None:
        """Nothing waits for it."""

    def disconnected(self, reason: Exception | None) -> None:
        self._lost = reason or ConnectionError("closed by the broker")
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionError(f"{self._name} lost its connection: {self._lost}"))
        self._waiting.clear()
