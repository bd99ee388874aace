"""A client that sends whatever bytes it is given, for tests of what a broker does with them.

Owns one socket and nothing of the protocol but the length before a frame. Every wait has an end.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request
from tests.support.messages import RESPONSES

TIMEOUT_SECONDS = 60.0
_API_VERSIONS = 18
_LENGTH = struct.Struct(">i")

ResponseType = TypeVar("ResponseType", bound=Message)


def request_frame(message: Message, version: int, correlation_id: int = 7) -> bytes:
    """A whole valid request, with its length."""
    header = RequestHeader(message.API_KEY, version, correlation_id, "raw")
    return encode_request(header, version >= message.FLEXIBLE_FROM, bytes(message.encode(version)))


def frame_of(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """A request of any API and version, served or not, with any body."""
    return encode_request(RequestHeader(api_key, version, 7, "raw"), flexible, body)


class RawClient:
    """One connection to a broker; a context manager."""

    def __init__(self, port: int, *, timeout_seconds: float = TIMEOUT_SECONDS, receive_buffer: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_seconds)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all bytes; it is no error if the broker closes the connection meanwhile."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def end_sending(self) -> None:
        """Close the sending side, and keep reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def receive_frame(self) -> bytes | None:
        """The next response without its length, or None where the broker closed the connection."""
        head = self._receive(_LENGTH.size)
        if head is None:
            return None
        return self._receive(_LENGTH.unpack(head)[0])

    def _receive(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                more = self.socket.recv(min(1 << 20, size - len(data)))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return bytes(data)

    def is_closed_by_broker(self) -> bool:
        """Wait until the broker closes the connection; False where it answers instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def ask(self, message: Message, version: int, answer: type[ResponseType]) -> ResponseType:
        """Send one valid request and decode its answer."""
        self.send(request_frame(message, version))
        return self.read_answer(version, answer)

    def read_answer(self, version: int, answer: type[ResponseType]) -> ResponseType:
        """Decode the next response."""
        assert RESPONSES[answer.API_KEY] is answer
        data = self.receive_frame()
        assert data is not None, "the broker closed the connection in place of an answer"
        flexible = version >= answer.FLEXIBLE_FROM and answer.API_KEY != _API_VERSIONS
        _, position = decode_response_header(memoryview(data), flexible)
        return answer.decode(version, data[position:])
