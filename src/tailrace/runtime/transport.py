"""The network port: bytes in, buffers and file ranges out.

The receiver of a connection provides the buffer for received bytes, so that they can be parsed in place. File ranges
can be sent without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tailrace.runtime.disk import Buffer, FileRange

Part: TypeAlias = Buffer | FileRange


class Transport(Protocol):
    """One open connection, as its owner sees it."""

    @property
    def peer(self) -> str:
        """The peer's address as `host:port`."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How many bytes passed to `send` are still waiting for the peer to read."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Send after everything sent before. Buffers must not change afterwards."""
        ...

    def expect_send(self) -> None:
        """The last received data will soon be answered, so a vanished peer is detected then."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Send queued data, then close."""
        ...

    def abort(self) -> None:
        """Close at once and drop queued data."""
        ...


class Receiver(Protocol):
    """Callbacks of a transport to its owner. None of these may block or raise."""

    def lend_buffer(self) -> memoryview:
        """A non-empty buffer for the next bytes."""
        ...

    def received(self, size: int) -> None:
        """That many bytes were written to the start of the provided buffer."""
        ...

    def drained(self) -> None:
        """All queued data was sent."""
        ...

    def disconnected(self, reason: Exception | None) -> None:
        """The connection has ended; called exactly once, and last."""
        ...


ReceiverFactory: TypeAlias = Callable[[Transport], Receiver]


class Listener(Protocol):
    """A bound port that accepts connections."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting; open connections continue."""
        ...


class Network(Protocol):
    """Listens and connects."""

    async def listen(self, host: str, port: int, factory: ReceiverFactory) -> Listener:
        """Accept connections on a port (0: any free port), each with its own receiver."""
        ...

    async def connect(self, host: str, port: int, factory: ReceiverFactory) -> Transport:
        """Open a connection; OSError if that fails."""
        ...
