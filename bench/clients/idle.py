"""Idle connections to a broker: each asks once which APIs there are, as any client does, and then says no more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.systems.system import Handle

#: ApiVersions version 0, correlation id 1, no client id, after its length.
API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@contextmanager
def idle_connections(handle: Handle, count: int) -> Iterator[None]:
    """Keep this many connections open for as long as the block runs."""
    with ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection((handle.host, handle.port), timeout=30))
            connection.sendall(API_VERSIONS_REQUEST)
            _read_response(connection)
        yield


def _read_response(connection: socket.socket) -> None:
    (left,) = struct.unpack(">i", _read_exactly(connection, 4))
    correlation_id, error_code = struct.unpack(">ih", _read_exactly(connection, left)[:6])
    if (correlation_id, error_code) != (1, 0):
        raise OSError(f"ApiVersions was answered with correlation id {correlation_id} and error {error_code}")


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise OSError("the broker closed an idle connection")
        received += piece
    return received
