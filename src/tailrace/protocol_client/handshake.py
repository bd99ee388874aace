"""From an address to a usable connection: first the socket, then the versions that the broker serves.

Owns everything before the first request, and the error messages for it. TLS belongs around the socket in `open_socket`;
SASL belongs at the end of `greet`, between the versions and the first request.
"""

from __future__ import annotations

import socket
from typing import Protocol

from tailrace import __version__
from tailrace.errors import ErrorCode, WireError
from tailrace.protocol_client.errors import (
    ConnectFailedError,
    ConnectionLostError,
    MalformedAnswerError,
    NoAnswerInTimeError,
)
from tailrace.protocol_client.settings import Address
from tailrace.protocol_client.versions import Versions
from tailrace.wire.codec import Message
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_NEWEST, _OLDEST = 3, 0
_SOFTWARE = "tailrace"
#: The first bytes of other protocols.
_TLS_ALERT = b"\x15\x03"
_OTHERS = {b"HTTP": "HTTP", b"SSH-": "SSH"}


class Conversation(Protocol):
    """A connection whose versions are not known yet."""

    def send(self, request: Message, version: int) -> None: ...

    def receive(self) -> memoryview: ...


def open_socket(address: Address, timeout: float, receive_buffer_bytes: int = -1) -> socket.socket:
    """Connect to an address; ConnectFailedError says why that failed."""
    try:
        opened = socket.create_connection(address, timeout=timeout)
    except socket.gaierror as error:
        raise ConnectFailedError(f"cannot resolve host '{address[0]}': {reason_of(error)}") from error
    except UnicodeError as error:
        raise ConnectFailedError(f"cannot resolve host '{address[0]}': not a host name") from error
    except OSError as error:
        raise ConnectFailedError(reason_of(error)) from error
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer_bytes > 0:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return opened


def greet(connection: Conversation) -> dict[int, Versions]:
    """Learn which API versions a broker serves; this must be the first request."""
    try:
        answer = _ask_versions(connection, _NEWEST)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = _ask_versions(connection, _OLDEST)
    except NoAnswerInTimeError as error:
        raise ConnectFailedError(f"it accepts connections, but sent {error}") from error
    except ConnectionLostError as error:
        raise ConnectFailedError(f"{error} before it sent any response; does it expect TLS?") from error
    except WireError as error:
        raise MalformedAnswerError(str(error)) from error
    if answer.error_code != ErrorCode.NONE:
        raise MalformedAnswerError(f"it refused to report its API versions with error {answer.error_code}")
    return {each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys}


def _ask_versions(connection: Conversation, version: int) -> ApiVersionsResponse:
    connection.send(
        ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version=__version__.split("+")[0]), version
    )
    body = connection.receive()
    # A broker that does not know the version responds in the oldest one, which begins with the same field.
    if int.from_bytes(body[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:
        version = _OLDEST
    return ApiVersionsResponse.decode(version, body)


def describe_prefix(prefix: bytes) -> str:
    """Explain a response that begins with these four bytes, which are not the length of a response."""
    if prefix.startswith(_TLS_ALERT):
        return "it expects TLS"
    if prefix in _OTHERS:
        return f"it speaks {_OTHERS[prefix]}"
    return f"response of {int.from_bytes(prefix, 'big', signed=True)} bytes, which is impossible"


def reason_of(error: OSError) -> str:
    """Return the operating system's reason in a few words."""
    return (error.strerror or str(error)).lower()
