"""A blocking connection to one broker, which may have several requests in flight.

Owns the socket, its timeouts and the correlation ids. Responses arrive in the order of the requests. Every failure is a
`ConnectionFailure`, after which the connection can only be closed. This module must not know what messages mean.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

from tailrace.errors import WireError
from tailrace.protocol_client.errors import ConnectionLostError, MalformedAnswerError, NoAnswerInTimeError
from tailrace.protocol_client.handshake import describe_prefix, greet, open_socket, reason_of
from tailrace.protocol_client.settings import Address, ConnectionSettings, join_address
from tailrace.protocol_client.versions import Versions, choose_version
from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request

Answer = TypeVar("Answer", bound=Message)

_LENGTH_BYTES = 4
_HEADER = struct.Struct(">ihhih")
#: Before the peer has proved to be a broker, a large length is more likely text of another protocol.
_MAX_GREETING_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 1 << 30
#: The kernel takes at most 1,024 pieces at once.
_MAX_PIECES = 1000
_SHORTEST_WAIT = 0.001


class BrokerConnection:
    """A connection to the broker at an address, ready for requests."""

    def __init__(self, address: Address, settings: ConnectionSettings, *, connect_timeout: float | None = None) -> None:
        self.address = address
        self._client_id = settings.client_id
        self._timeout = settings.request_timeout_ms / 1000
        self._correlation_id = 0
        #: The correlation id of each request without a response, and whether the response's header has tagged fields.
        self._awaited: deque[tuple[int, bool]] = deque()
        self._prefix = bytearray(_LENGTH_BYTES)
        self._buffer = bytearray()
        self._max_answer_bytes = _MAX_GREETING_BYTES
        seconds = settings.connect_timeout_ms / 1000 if connect_timeout is None else connect_timeout
        self._socket = open_socket(address, seconds, settings.receive_buffer_bytes)
        try:
            self._served = greet(self)
        except BaseException:
            self._socket.close()
            raise
        self._max_answer_bytes = _MAX_ANSWER_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; the broker may or may not execute requests in flight."""
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor to poll for responses."""
        return self._socket.fileno()

    @property
    def buffer(self) -> bytearray:
        """The memory that holds the last response."""
        return self._buffer

    def version_of(self, request: type[Message], usable: Versions) -> int:
        """Return the version in which to send a request; UnsupportedVersionError if there is no common version."""
        return choose_version(request, usable, self._served, join_address(self.address))

    def ask(self, request: Message, usable: Versions, kind: type[Answer]) -> Answer:
        """Send a request and wait for its response; no other request may be in flight."""
        version = self.version_of(type(request), usable)
        self.send(request, version)
        return self.receive_as(kind, version)

    def send(self, request: Message, version: int) -> None:
        """Send a request; `receive` returns its response later."""
        is_flexible = request.is_flexible(version)
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._client_id)
        frame = encode_request(header, is_flexible, request.encode(version))
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(error) from error
        # Only the ApiVersions response has the old header, because its client does not know the broker's versions yet.
        self._awaited.append((self._correlation_id, is_flexible and request.API_KEY != ApiKey.API_VERSIONS))

    def send_pieces(self, api_key: int, version: int, body: Sequence[Buffer]) -> None:
        """Send a request of a non-flexible version without copying the pieces of its body."""
        self._correlation_id += 1
        client_id = self._client_id.encode()
        length = _HEADER.size - _LENGTH_BYTES + len(client_id) + sum(map(len, body))
        head = _HEADER.pack(length, api_key, version, self._correlation_id, len(client_id)) + client_id
        pieces = [memoryview(head), *(memoryview(piece) for piece in body)]
        try:
            self._socket.settimeout(self._timeout)
            while pieces:
                sent = self._socket.sendmsg(pieces[:_MAX_PIECES])
                done = 0
                while done < len(pieces) and sent >= len(pieces[done]):
                    sent -= len(pieces[done])
                    done += 1
                del pieces[:done]
                if sent:
                    pieces[0] = pieces[0][sent:]
        except OSError as error:
            raise self._lost(error) from error
        self._awaited.append((self._correlation_id, False))

    def receive_as(self, kind: type[Answer], version: int) -> Answer:
        """Return the next response, decoded; its record data are views of the buffer that the next one overwrites."""
        try:
            return kind.decode(version, self.receive())
        except WireError as error:
            raise MalformedAnswerError(str(error)) from error

    def receive(self) -> memoryview:
        """Return the body of the next response, a view of the buffer that the next one overwrites."""
        deadline = time.monotonic() + self._timeout
        self._fill(memoryview(self._prefix), deadline)
        length = int.from_bytes(self._prefix, "big", signed=True)
        if not 0 <= length <= self._max_answer_bytes:
            raise MalformedAnswerError(describe_prefix(bytes(self._prefix)))
        if len(self._buffer) < length:
            self._buffer = bytearray(length + length // 8)
        answer = memoryview(self._buffer)[:length]
        self._fill(answer, deadline)
        expected, has_tags = self._awaited.popleft()
        try:
            correlation_id, position = decode_response_header(answer, has_tags)
        except WireError as error:
            raise MalformedAnswerError(str(error)) from error
        if correlation_id != expected:
            raise MalformedAnswerError(f"received the response to request {correlation_id} instead of {expected}")
        return answer[position:]

    def _fill(self, target: memoryview, deadline: float) -> None:
        filled = 0
        try:
            while filled < len(target):
                # One call that waits for all bytes costs less than many that take what is there.
                self._socket.settimeout(max(_SHORTEST_WAIT, deadline - time.monotonic()))
                received = self._socket.recv_into(target[filled:])
                if not received:
                    raise ConnectionLostError("the broker closed the connection")
                filled += received
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> ConnectionLostError:
        if isinstance(error, TimeoutError):
            return NoAnswerInTimeError(f"no response within {self._timeout:g} s")
        return ConnectionLostError(reason_of(error))
