"""A transport in memory: keeps what was sent, and takes no more than a test lets it."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.runtime.disk import FileRange
from tailrace.runtime.transport import Part, Receiver


class MemoryTransport:
    """The server's end of a connection, with a test at the other."""

    peer = "client:1234"

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        #: One entry for each call of `send`.
        self.sends: list[bytes] = []
        self.unsent_bytes = 0
        self.is_reading = True
        self.is_closed = False
        #: Whether the other side reads what it is sent.
        self.is_taking = True

    @property
    def sent(self) -> bytes:
        return b"".join(self.sends)

    def deliver(self, data: bytes, piece: int = 1 << 30) -> None:
        """Have bytes arrive, in pieces of at most a size; those that nobody reads are refused."""
        assert self.receiver is not None
        position = 0
        while position < len(data):
            assert self.is_reading, "bytes arrive that are not asked for"
            buffer = self.receiver.lend_buffer()
            size = min(piece, len(buffer), len(data) - position)
            assert size > 0
            buffer[:size] = data[position : position + size]
            position += size
            self.receiver.received(size)
            if self.is_closed:
                return

    def take(self) -> None:
        """The other side reads everything."""
        assert self.receiver is not None
        self.is_taking = True
        self.unsent_bytes = 0
        self.receiver.drained()

    def disconnect(self) -> None:
        assert self.receiver is not None
        self.receiver.disconnected(None)

    # The port.

    def send(self, parts: Sequence[Part]) -> None:
        if self.is_closed:
            return
        data = b"".join(
            part.file.read(part.position, part.size) if isinstance(part, FileRange) else bytes(part) for part in parts
        )
        self.sends.append(data)
        if not self.is_taking:
            self.unsent_bytes += len(data)

    def expect_send(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = not self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self.is_reading = False

    def abort(self) -> None:
        self.close()
