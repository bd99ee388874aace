"""Listeners and the connections they accepted, with the limits on how many there may be and how long idle."""

from __future__ import annotations

import asyncio
import logging

from tailrace.broker.buffers import BufferPool
from tailrace.broker.config import BrokerConfig
from tailrace.broker.connection import Answer, Connection
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.runtime.transport import Listener, Receiver, Transport

logger = logging.getLogger("tailrace.broker")

#: What one read event can take in at most; shared by all connections, since each event is handled to its end.
_SCRATCH_BYTES = 1 << 20


class Server:
    """The broker's side of the network."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, answer: Answer, tasks: Tasks) -> None:
        self._runtime = runtime
        self._answer = answer
        self._tasks = tasks
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._pool = BufferPool()
        self._frame_limit = config.get_int("socket.request.max.bytes")
        self._max_connections = config.get_int("max.connections")
        self._max_per_address = config.get_int("max.connections.per.ip")
        self._max_idle = config.get_int("connections.max.idle.ms") / 1000
        self._connections: dict[Connection, None] = {}
        self._per_address: dict[str, int] = {}
        self._listeners: list[Listener] = []

    async def listen(self, name: str, host: str, port: int) -> int:
        """Accept connections for a listener; the port it is bound to."""
        listener = await self._runtime.network.listen(host, port, lambda transport: self._accept(transport, name))
        self._listeners.append(listener)
        return listener.port

    def start(self) -> None:
        """Begin to look for idle connections."""
        if self._max_idle > 0:
            self._tasks.spawn(self._close_idle(), "idle connections")

    def _accept(self, transport: Transport, listener: str) -> Receiver:
        address = transport.peer.rpartition(":")[0]
        connection = Connection(
            transport,
            listener,
            self._answer,
            self._scratch,
            self._frame_limit,
            self._forget,
            self._runtime.clock,
            self._pool,
        )
        count = self._per_address.get(address, 0)
        self._connections[connection] = None
        self._per_address[address] = count + 1
        if len(self._connections) > self._max_connections or count >= self._max_per_address:
            logger.warning(
                "connection from %s refused: %d connections, %d of them from there "
                "(max.connections=%d, max.connections.per.ip=%d)",
                transport.peer,
                len(self._connections) - 1,
                count,
                self._max_connections,
                self._max_per_address,
            )
            transport.abort()
        return connection

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        address = connection.transport.peer.rpartition(":")[0]
        left = self._per_address.get(address, 1) - 1
        if left:
            self._per_address[address] = left
        else:
            self._per_address.pop(address, None)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._max_idle / 4, 30.0))
            oldest = self._runtime.clock.monotonic() - self._max_idle
            for connection in list(self._connections):
                if connection.last_active < oldest and not connection.is_waiting:
                    logger.info("connection from %s closed: idle", connection.transport.peer)
                    connection.transport.abort()

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for listener in self._listeners:
            listener.close()

    async def close(self) -> None:
        """Let go of every connection."""
        self.stop_listening()
        for connection in list(self._connections):
            connection.transport.close()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)
