"""The network port: bytes in, buffers and file ranges out.

The receiver of a connection lends the buffer that bytes are received into, so that they can be parsed where
they are; what is sent may be ranges of files, so that they can go to the socket without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tailrace.runtime.disk import Buffer, FileRange

Part: TypeAlias = Buffer | FileRange


class Transport(Protocol):
    """One open connection, seen from the code that owns it."""

    @property
    def peer(self) -> str:
        """The other side as `host:port`."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How much of what was given to `send` waits for the other side to read."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Send in order after everything sent before. Buffers must not change afterwards."""
        ...

    def expect_send(self) -> None:
        """What was received last is answered before long: whether the other side is still there shows then."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Send what is queued, then close."""
        ...

    def abort(self) -> None:
        """Close at once; what is queued is dropped."""
        ...


class Receiver(Protocol):
    """What a transport tells the code that owns it. None of these may block or raise."""

    def lend_buffer(self) -> memoryview:
        """A non-empty buffer for the next bytes."""
        ...

    def received(self, size: int) -> None:
        """That many bytes were put at the start of the lent buffer."""
        ...

    def drained(self) -> None:
        """Everything queued has been handed to the other side."""
        ...

    def disconnected(self, reason: Exception | None) -> None:
        """The connection is gone; called exactly once, and nothing is called after it."""
        ...


ReceiverFactory: TypeAlias = Callable[[Transport], Receiver]


class Listener(Protocol):
    """A bound port that accepts connections."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Accept no more; open connections go on."""
        ...


class Network(Protocol):
    """Where to listen and connect."""

    async def listen(self, host: str, port: int, factory: ReceiverFactory) -> Listener:
        """Accept connections on a port (0: any free one), each handed to a receiver of its own."""
        ...

    async def connect(self, host: str, port: int, factory: ReceiverFactory) -> Transport:
        """Open a connection; OSError where nobody answers."""
        ...
