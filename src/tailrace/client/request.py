"""One question to one broker over a connection of its own, for what librdkafka has no call for.

Owns the connection and the frames. It asks in a version that Kafka has served for years and does not negotiate.
"""

from __future__ import annotations

import socket
import time
from typing import TypeVar

from tailrace.client.connection import REQUEST_TIMEOUT, connect
from tailrace.client.errors import ClientError, NoAnswerError
from tailrace.errors import WireError
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request

Response = TypeVar("Response", bound=Message)

_CLIENT_ID = "tailrace"
_CORRELATION_ID = 1
_LENGTH_BYTES = 4
_MAX_RESPONSE_BYTES = 64 << 20


def ask(bootstrap: str, request: Message, version: int, kind: type[Response], *, doing: str) -> Response:
    """Ask the first of the addresses that accepts a connection; ClientError where no answer comes."""
    frame = encode_request(
        RequestHeader(request.API_KEY, version, _CORRELATION_ID, _CLIENT_ID),
        request.is_flexible(version),
        request.encode(version),
    )
    with connect(bootstrap) as connection:
        deadline = time.monotonic() + REQUEST_TIMEOUT
        try:
            connection.settimeout(REQUEST_TIMEOUT)
            connection.sendall(frame)
            length = int.from_bytes(_receive(connection, _LENGTH_BYTES, deadline), "big")
            if length > _MAX_RESPONSE_BYTES:
                raise WireError(f"an answer of {length} bytes")
            answer = memoryview(_receive(connection, length, deadline))
            # ApiVersions alone is answered with the old header, because its client does not know the broker yet.
            has_flexible_header = request.is_flexible(version) and request.API_KEY != ApiKey.API_VERSIONS
            correlation_id, position = decode_response_header(answer, has_flexible_header)
            if correlation_id != _CORRELATION_ID:
                raise WireError(f"an answer to question {correlation_id}")
            return kind.decode(version, answer[position:])
        except TimeoutError as error:
            raise NoAnswerError(f"the broker at {bootstrap} did not answer in time while {doing}") from error
        except OSError as error:
            raise NoAnswerError(f"lost the broker at {bootstrap} while {doing}: {error}") from error
        except WireError as error:
            raise ClientError(f"what listens at {bootstrap} does not answer as a broker ({error})") from error


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        data = connection.recv(min(size - len(received), 1 << 20))
        if not data:
            raise ConnectionError("the connection was closed")
        received += data
    return bytes(received)
