"""A TCP connection on loopback that records what passes, as an eavesdropper between two brokers would.

It must not know what is said over it, but for the length before a frame.
"""

from __future__ import annotations

import socket

from tests.support.network.cuttable_line import CuttableLine

_LENGTH_BYTES = 4


class OverheardLine(CuttableLine):
    """A line to a port that keeps a copy of every byte, by who sent it."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._heard: dict[socket.socket, bytearray] = {}

    def passing(self, source: socket.socket, data: bytes) -> None:
        self._heard.setdefault(source, bytearray()).extend(data)

    def conversations(self, api_key: int) -> list[list[bytes]]:
        """The frames of an API, with their lengths, of each connection on which it was asked for anything."""
        wanted = api_key.to_bytes(2, "big")
        found = [
            [frame for frame in _frames(bytes(data)) if frame[_LENGTH_BYTES : _LENGTH_BYTES + 2] == wanted]
            for data in list(self._heard.values())
        ]
        return [frames for frames in found if frames]


def _frames(data: bytes) -> list[bytes]:
    frames = []
    position = 0
    while len(data) - position >= _LENGTH_BYTES:
        end = position + _LENGTH_BYTES + int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
        if end > len(data):
            break
        frames.append(data[position:end])
        position = end
    return frames
