"""A broker in threads whose answers a test writes, as no real broker gives them on demand.

Owns a listening socket and the frames, and answers the greeting, ApiVersions, by itself. It must not know the client
under test.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeAlias

from tailrace.errors import ErrorCode
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_request_header
from tailrace.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tests.support.response_header import encode_response_header

_LENGTH = struct.Struct(">i")

#: A message is sent in its frame, bytes are sent as they are, and None closes the connection.
Answer: TypeAlias = Message | bytes | None


class ScriptedBroker:
    """Serves some APIs and answers each request as told; use it in a `with` block."""

    def __init__(
        self,
        served: Mapping[type[Message], tuple[int, int]],
        answer: Callable[[RequestHeader, memoryview], Answer],
        *,
        newest_greeting: int = 4,
    ) -> None:
        self.asked: list[RequestHeader] = []
        self._served = served
        self._answer_to = answer
        self._newest_greeting = newest_greeting
        kinds: list[type[Message]] = [ApiVersionsRequest, *served]
        self._flexible_from = {int(kind.API_KEY): kind.FLEXIBLE_FROM for kind in kinds}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._listener.getsockname()[1]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def __enter__(self) -> ScriptedBroker:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread that waits in accept is woken by this, and not by close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # Nobody is there any more.
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            with self._lock:
                self._connections.append(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while prefix := stream.read(_LENGTH.size):
                    body = memoryview(stream.read(_LENGTH.unpack(prefix)[0]))
                    header, position = decode_request_header(body, self._flexible_from)
                    is_greeting = header.api_key == ApiVersionsRequest.API_KEY
                    answer = self._greet(header) if is_greeting else self._answer(header, body[position:])
                    if answer is None:
                        return
                    connection.sendall(answer)
            except OSError:
                return

    def _greet(self, header: RequestHeader) -> bytes:
        is_known = header.api_version <= self._newest_greeting
        answer = ApiVersionsResponse(
            error_code=ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(api_key=kind.API_KEY, min_version=least, max_version=most)
                for kind, (least, most) in self._served.items()
                if is_known
            ],
        )
        return frame_of(answer, header.api_version if is_known else 0, header.correlation_id, has_tags=False)

    def _answer(self, header: RequestHeader, body: memoryview) -> bytes | None:
        self.asked.append(header)
        answer = self._answer_to(header, body)
        if not isinstance(answer, Message):
            return answer
        has_tags = answer.is_flexible(header.api_version)
        return frame_of(answer, header.api_version, header.correlation_id, has_tags=has_tags)


def frame_of(answer: Message, version: int, correlation_id: int, *, has_tags: bool) -> bytes:
    """A whole answer with its length."""
    data = encode_response_header(correlation_id, has_tags) + answer.encode(version)
    return _LENGTH.pack(len(data)) + data
