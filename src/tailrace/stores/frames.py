"""The protocol of a store over a Unix socket: frames with a JSON header and the bytes of values.

    frame  = length of the rest (4 bytes) | length of the header (4 bytes) | header | values, one after another
    header = an object; entries and writes in it have the size of their value, or -1 for none

The server greets with {"protocol": 1, "software": …}. Requests have an "id" and an operation in "do". Answers have the
same id, and "unavailable" with a reason if the outcome is unknown. Messages without a request have "watch" or "ended".
"""

from __future__ import annotations

import json
import os
import socket
import struct
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tailrace.cluster.store import Entry
from tailrace.errors import WireError

PROTOCOL_VERSION = 1
Header: TypeAlias = dict[str, Any]

_LENGTHS = struct.Struct(">II")
_MAX_FRAME_BYTES = 256 << 20
_LONGEST_SOCKET_PATH = 107


def encode(header: Header, values: Iterable[bytes | None] = ()) -> bytes:
    """Encode a frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    blob = b"".join(value for value in values if value is not None)
    return _LENGTHS.pack(4 + len(text) + len(blob), len(text)) + text + blob


async def read(reader: StreamReader) -> tuple[Header, memoryview] | None:
    """The next frame's header and the bytes after it; None if the peer has closed the connection."""
    try:
        length, header_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if not 4 + header_length <= length <= _MAX_FRAME_BYTES:
            raise WireError(f"invalid frame: {length} bytes with a header of {header_length}")
        rest = memoryview(await reader.readexactly(length - 4))
    except IncompleteReadError:
        return None
    try:
        header = json.loads(bytes(rest[:header_length]))
    except ValueError as error:
        raise WireError(f"invalid header, which is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise WireError("invalid header, which is not a JSON object")
    return header, rest[header_length:]


def sizes_of(entries: Sequence[Entry]) -> list[tuple[str, int, int]]:
    """The description of entries in a header."""
    return [(entry.key, entry.version, len(entry.value)) for entry in entries]


def entries_from(sizes: Iterable[tuple[str, int, int]], blob: memoryview) -> list[Entry]:
    """Entries from their description in a header and the bytes after it."""
    entries = []
    position = 0
    for key, version, size in sizes:
        entries.append(Entry(key, bytes(blob[position : position + size]), version))
        position += size
    if position != len(blob):
        raise WireError(f"{len(blob)} bytes of values, but the header describes {position}")
    return entries


def values_from(sizes: Iterable[int], blob: memoryview) -> list[bytes | None]:
    """Values from their sizes (-1 for none) and the bytes after the header."""
    values: list[bytes | None] = []
    position = 0
    for size in sizes:
        values.append(None if size < 0 else bytes(blob[position : position + size]))
        position += max(size, 0)
    if position != len(blob):
        raise WireError(f"{len(blob)} bytes of values, but the header describes {position}")
    return values


class SocketPath:
    """A usable path to a socket, even if its real path is too long; valid while the context is open."""

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self.path = path
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            directory, name = os.path.split(path)
            self._descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.path = f"/proc/self/fd/{self._descriptor}/{name}"

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def new_socket() -> socket.socket:
    """A new Unix socket for an event loop."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.setblocking(False)
    return made
