"""A connection to another broker: framed requests and their responses in order, over the network port.

Owns frames, correlation ids and the memory for responses: a large response is received into its own memory, and decoded
values are views of it. It never retries: a lost connection is a `ConnectionError` for every request without a response.
`Backoff` says how long to wait before the next connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from random import Random
from typing import NamedTuple, Self, TypeVar

from tailrace.cluster.image import BrokerEndpoint, BrokerImage
from tailrace.errors import WireError
from tailrace.runtime.transport import Network, Transport
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request

logger = logging.getLogger("tailrace.broker")

Response = TypeVar("Response", bound=Message)

_unpack_length = struct.Struct(">i").unpack_from
_LENGTH_BYTES = 4
#: The most bytes to receive at once while no large response is under way.
_SCRATCH_BYTES = 64 * 1024
#: No broker sends more: socket.request.max.bytes limits a batch when it is produced.
_FRAME_LIMIT_BYTES = 1 << 30
#: The largest memory of a former response to keep for the next one.
_SPARE_LIMIT_BYTES = 16 << 20
#: The relative variation of pauses, so that brokers do not all reconnect at the same moment.
_JITTER = 0.2


class _Waiting(NamedTuple):
    """A request without a response."""

    correlation_id: int
    has_flexible_answer: bool
    answer: asyncio.Future[memoryview]


class PeerConnection:
    """The client's side of one connection to a broker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: Transport | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        # The number of bytes of an incomplete frame length at the start of the scratch buffer.
        self._kept = 0
        # The rest of a response goes here.
        self._frame: memoryview | None = None
        self._filled = 0
        self._spare: bytearray | None = None
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._lost: Exception | None = None

    @classmethod
    async def connect(cls, network: Network, host: str, port: int, name: str, seconds: float | None = None) -> Self:
        """Open a connection; OSError if there is no answer, within the given time if any."""
        connection = cls(name)

        def attach(transport: Transport) -> PeerConnection:
            connection._transport = transport
            return connection

        async with asyncio.timeout(seconds):
            await network.connect(host, port, attach)
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._lost is None

    def send(self, request: Message, version: int) -> asyncio.Future[memoryview]:
        """Send a request; the future's result is the body of its response."""
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self._lost is not None or self._transport is None:
            future.set_exception(ConnectionError(f"{self._name} is not connected"))
            return future
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        is_flexible = request.is_flexible(version)
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._name)
        has_flexible_answer = is_flexible and request.API_KEY != ApiKey.API_VERSIONS
        self._waiting.append(_Waiting(self._correlation_id, has_flexible_answer, future))
        self._transport.send([encode_request(header, is_flexible, request.encode(version))])
        return future

    async def call(self, request: Message, version: int, response: type[Response], seconds: float = 30.0) -> Response:
        """Send a request and decode its response; OSError if there is none, or a malformed one."""
        try:
            async with asyncio.timeout(seconds):
                return response.decode(version, await self.send(request, version))
        except TimeoutError:
            self.close()
            raise ConnectionError(f"{self._name} got no response within {seconds} s") from None
        except WireError as error:
            self.malformed(error)
            raise ConnectionError(f"{self._name} got a malformed response: {error}") from error

    def give_back(self, body: memoryview) -> None:
        """Release the memory of a response without any views, so that the next one may use it."""
        memory = body.obj
        if isinstance(memory, bytearray) and len(memory) <= _SPARE_LIMIT_BYTES:
            self._spare = memory

    def close(self) -> None:
        """Close the connection; requests without a response fail."""
        if self._transport is not None and self._lost is None:
            self._transport.abort()

    # --- calls from the transport

    def lend_buffer(self) -> memoryview:
        return self._frame[self._filled :] if self._frame is not None else self._scratch[self._kept :]

    def received(self, size: int) -> None:
        try:
            if self._frame is None:
                self._cut_frames(self._kept + size)
                return
            self._filled += size
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answered(frame)
        except WireError as error:
            self.malformed(error)

    def _cut_frames(self, size: int) -> None:
        """Take every whole frame from the scratch buffer; the rest of an incomplete one gets its own memory."""
        data = self._scratch[:size]
        position = 0
        while (start := position + _LENGTH_BYTES) <= size:
            (length,) = _unpack_length(data, position)
            if not 0 <= length <= _FRAME_LIMIT_BYTES:
                raise WireError(f"response of {length} bytes, which is impossible")
            if start + length > size:
                self._frame = self._memory_for(length)
                self._filled = size - start
                self._frame[: self._filled] = data[start:]
                self._kept = 0
                return
            position = start + length
            self._answered(memoryview(bytes(data[start:position])))
        self._kept = size - position
        self._scratch[: self._kept] = bytes(data[position:])

    def _memory_for(self, length: int) -> memoryview:
        memory, self._spare = self._spare, None
        if memory is None or len(memory) < length:
            memory = bytearray(length)
        return memoryview(memory)[:length]

    def _answered(self, frame: memoryview) -> None:
        if not self._waiting:
            raise WireError("response without a request")
        expected, is_flexible, answer = self._waiting[0]
        correlation_id, position = decode_response_header(frame, is_flexible)
        if correlation_id != expected:
            raise WireError(f"response {correlation_id} arrived when {expected} was due")
        self._waiting.popleft()
        if not answer.done():
            answer.set_result(frame[position:])

    def malformed(self, error: WireError) -> None:
        """Close the connection: the other side does not speak the protocol."""
        logger.error("%s: closed the connection: %s", self._name, error)
        self.close()

    def drained(self) -> None:
        """Nothing waits for this event."""

    def disconnected(self, reason: Exception | None) -> None:
        self._lost = reason or ConnectionError("the other side closed it")
        lost = ConnectionError(f"{self._name} lost its connection: {self._lost}")
        for waiting in self._waiting:
            if not waiting.answer.done():
                waiting.answer.set_exception(lost)
        self._waiting.clear()


def peer_endpoint(broker: BrokerImage, listener: str | None) -> BrokerEndpoint:
    """Return the endpoint that other brokers use: that of `inter.broker.listener.name`, or the first one."""
    endpoint = broker.endpoint(listener) if listener else next(iter(broker.endpoints), None)
    if endpoint is None:
        raise ConnectionError(f"broker {broker.broker_id} has no listener {listener} (inter.broker.listener.name)")
    return endpoint


class Backoff:
    """How long to wait after each consecutive failure: longer each time, up to a limit, with random variation."""

    def __init__(self, random: Random, first_seconds: float, most_seconds: float) -> None:
        self._random = random
        self._first_seconds = min(first_seconds, most_seconds)
        self._most_seconds = most_seconds
        self._failures = 0

    def failed(self) -> float:
        """Record a failure; return how many seconds to wait now."""
        seconds = self.after(self._failures)
        self._failures += 1
        return seconds

    def after(self, failures: int) -> float:
        """Return how many seconds to wait after this many previous failures."""
        # No power above 30: larger numbers do not fit a float.
        seconds = min(self._first_seconds * (1 << min(failures, 30)), self._most_seconds)
        return seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def succeeded(self) -> None:
        """Start over: the next failure is the first one."""
        self._failures = 0
