"""One blocking connection to one broker: frames out, frames in, in order.

Owns the socket, its timeout and the correlation ids. Whatever goes wrong on it is an OSError, after which it can only
be closed; bytes that are no answer are a WireError. It must not know what the messages mean.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import TypeVar

from tailrace.errors import WireError
from tailrace.runtime.disk import Buffer
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request

Response = TypeVar("Response", bound=Message)

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">ihhih")
_MAX_RESPONSE_BYTES = 64 << 20
#: The kernel takes at most 1,024 pieces at once.
_MAX_PIECES = 1000


class PipelinedConnection:
    """A connection to the broker at an address, over which requests may overtake answers."""

    def __init__(self, host: str, port: int, *, client_id: str, connect_timeout: float, timeout: float) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._socket = socket.create_connection((host, port), timeout=connect_timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(timeout)

    def fileno(self) -> int:
        """What to wait on for answers."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let go of the socket, whatever is on its way."""
        self._socket.close()

    def ask(self, request: Message, version: int, kind: type[Response]) -> Response:
        """Send a request and wait for its answer; nothing else may be on its way."""
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._client_id)
        self._socket.sendall(encode_request(header, request.is_flexible(version), request.encode(version)))
        return self.receive(self._correlation_id, version, kind)

    def send(self, api_key: int, version: int, body: Sequence[Buffer]) -> int:
        """Send a request of a version that is not flexible, given in pieces; its correlation id."""
        self._correlation_id += 1
        client_id = self._client_id.encode()
        length = _HEADER.size - _LENGTH.size + len(client_id) + sum(map(len, body))
        head = _HEADER.pack(length, api_key, version, self._correlation_id, len(client_id)) + client_id
        pieces = [memoryview(head), *(memoryview(piece) for piece in body)]
        while pieces:
            sent = self._socket.sendmsg(pieces[:_MAX_PIECES])
            done = 0
            while done < len(pieces) and sent >= len(pieces[done]):
                sent -= len(pieces[done])
                done += 1
            del pieces[:done]
            if sent:
                pieces[0] = pieces[0][sent:]
        return self._correlation_id

    def receive(self, correlation_id: int, version: int, kind: type[Response]) -> Response:
        """The next answer, which must be the one to that request."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if not 0 <= length <= _MAX_RESPONSE_BYTES:
            raise WireError(f"an answer of {length} bytes")
        answer = memoryview(self._read(length))
        found, position = decode_response_header(answer, kind.is_flexible(version))
        if found != correlation_id:
            raise WireError(f"an answer to request {found} in place of {correlation_id}")
        return kind.decode(version, answer[position:])

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            read = self._socket.recv_into(view)
            if not read:
                raise ConnectionError("the broker closed the connection")
            view = view[read:]
        return bytes(data)
