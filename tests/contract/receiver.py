"""A receiver that records its calls and lets tests wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tailrace.runtime.transport import Listener, Transport
from tests.contract.world import World

#: Longer than anything here takes, so that a broken promise fails the test instead of hanging it.
PATIENCE_SECONDS = 180


class Recorder:
    """Keeps all bytes and events of one end of a connection."""

    def __init__(self, transport: Transport, buffer_bytes: int = 65_536) -> None:
        self.transport = transport
        self.data = bytearray()
        self.largest_piece = 0
        self.drained_count = 0
        self.ends: list[Exception | None] = []
        self.calls_after_end = 0
        self.on_received: Callable[[bytes], None] = lambda data: None
        self._buffer = bytearray(buffer_bytes)
        self._changed = asyncio.Event()

    def lend_buffer(self) -> memoryview:
        self._note()
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self._note()
        data = bytes(self._buffer[:size])
        self.data += data
        self.largest_piece = max(self.largest_piece, size)
        # The bytes belong to the receiver now; code that still used the buffer would read this.
        self._buffer[:size] = b"\xee" * size
        self.on_received(data)

    def drained(self) -> None:
        self._note()
        self.drained_count += 1

    def disconnected(self, reason: Exception | None) -> None:
        self._note()
        self.ends.append(reason)

    def _note(self) -> None:
        if self.ends:
            self.calls_after_end += 1
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds that calls to this receiver can make true."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> Exception | None:
        """Wait until the connection is gone; returns the reason."""
        await self.until(lambda: bool(self.ends))
        return self.ends[0]


class Acceptor:
    """Makes a recorder for every connection that a listener accepts."""

    def __init__(self, buffer_bytes: int = 65_536) -> None:
        self.accepted: list[Recorder] = []
        self._buffer_bytes = buffer_bytes
        self._arrived = asyncio.Event()

    def __call__(self, transport: Transport) -> Recorder:
        recorder = Recorder(transport, self._buffer_bytes)
        self.accepted.append(recorder)
        self._arrived.set()
        return recorder

    async def next(self) -> Recorder:
        """The first connection."""
        await self.until(1)
        return self.accepted[0]

    async def until(self, count: int) -> None:
        """Wait until this many connections were accepted."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.accepted) < count:
                self._arrived.clear()
                await self._arrived.wait()


@asynccontextmanager
async def connection(
    world: World, *, client_buffer_bytes: int = 65_536, server_buffer_bytes: int = 65_536
) -> AsyncIterator[tuple[Recorder, Recorder, Listener]]:
    """Both ends of one connection; afterwards both are closed, and were notified exactly once."""
    acceptor = Acceptor(server_buffer_bytes)
    listener = await world.network.listen("127.0.0.1", 0, acceptor)
    made: list[Recorder] = []

    def make_client(transport: Transport) -> Recorder:
        made.append(Recorder(transport, client_buffer_bytes))
        return made[0]

    try:
        await world.network.connect("127.0.0.1", listener.port, make_client)
        client, server = made[0], await acceptor.next()
        yield client, server, listener
    finally:
        listener.close()
        for recorder in (*made, *acceptor.accepted):
            recorder.transport.abort()
    for recorder in (client, server):
        await recorder.end()
    # Anything still to come arrives now.
    await asyncio.sleep(0.01)
    for recorder in (client, server):
        assert len(recorder.ends) == 1
        assert recorder.calls_after_end == 0
