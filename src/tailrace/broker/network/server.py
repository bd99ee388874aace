"""Listeners and their connections, with limits on the number of connections and on idle time."""

from __future__ import annotations

import asyncio
import logging

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.network.buffers import BufferPool
from tailrace.broker.network.connection import Answer, Connection
from tailrace.broker.network.request_memory import FREE_BYTES, RequestMemory
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.runtime.transport import Listener, Receiver, Transport

logger = logging.getLogger("tailrace.broker")

#: The most that one read event can receive; all connections share it, since each event is handled to its end.
_SCRATCH_BYTES = 1 << 20
#: How long a connection that holds memory may be silent while others wait for memory.
_STUCK_SECONDS = 5.0
_STUCK_CHECK_SECONDS = 1.0


class Server:
    """The broker's side of the network."""

    def __init__(
        self, config: BrokerConfig, runtime: Runtime, answer: Answer, tasks: Tasks, memory: RequestMemory
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._answer = answer
        self._tasks = tasks
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._pool = BufferPool()
        self._memory = memory
        self._frame_limit = config.get_int("socket.request.max.bytes")
        self._max_idle = config.get_int("connections.max.idle.ms") / 1000
        self._connections: dict[Connection, None] = {}
        self._per_address: dict[str, int] = {}
        self._listeners: list[Listener] = []
        #: The numbers of accepted and closed connections since the start, by listener, and of refused ones.
        self.accepted: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.refused = 0

    async def listen(self, name: str, host: str, port: int) -> int:
        """Accept connections for a listener; return its port."""
        listener = await self._runtime.network.listen(host, port, lambda transport: self._accept(transport, name))
        self._listeners.append(listener)
        self.accepted.setdefault(name, 0)
        return listener.port

    def start(self) -> None:
        """Start to check for idle or stuck connections."""
        if self._max_idle > 0:
            self._tasks.spawn(self._close_idle(), "idle connections")
        if self._config.get_int("queued.max.request.bytes") >= 0:
            self._tasks.spawn(self._close_stuck(), "stuck connections")

    @property
    def held_bytes(self) -> int:
        """The memory that requests and responses of all connections use."""
        return self._memory.held_bytes

    def _accept(self, transport: Transport, listener: str) -> Receiver:
        address = _address(transport)
        connection = Connection(
            transport,
            listener,
            self._answer,
            self._scratch,
            self._frame_limit,
            self._forget,
            self._runtime.clock,
            self._pool,
            self._memory,
        )
        count = self._per_address.get(address, 0)
        self._connections[connection] = None
        self.accepted[listener] = self.accepted.get(listener, 0) + 1
        self._per_address[address] = count + 1
        # Read each time: both may change while the broker runs.
        most, most_per_address = self._config.get_int("max.connections"), self._most_from(address)
        if len(self._connections) > most or count >= most_per_address:
            logger.warning(
                "refused a connection from %s: %d connections, %d of them from there (max.connections=%d, "
                "max.connections.per.ip=%d)",
                transport.peer,
                len(self._connections) - 1,
                count,
                most,
                most_per_address,
                extra={"peer": transport.peer, "listener": listener, "repeats": "connection refused"},
            )
            self.refused += 1
            transport.abort()
        return connection

    def _most_from(self, address: str) -> int:
        """Return the number of connections that one address may have."""
        for override in self._config.get_list("max.connections.per.ip.overrides"):
            overridden, _, count = override.rpartition(":")
            if overridden.strip("[]") == address:
                return int(count)
        return self._config.get_int("max.connections.per.ip")

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.ended[connection.listener] = self.ended.get(connection.listener, 0) + 1
        address = _address(connection.transport)
        left = self._per_address.get(address, 1) - 1
        if left:
            self._per_address[address] = left
        else:
            self._per_address.pop(address, None)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._max_idle / 4, 30.0))
            oldest = self._runtime.clock.monotonic() - self._max_idle
            idle = [
                connection
                for connection in self._connections
                if connection.last_active < oldest and not connection.is_waiting
            ]
            for connection in idle:
                peer = connection.transport.peer
                logger.debug("closed the connection from %s: idle", peer, extra={"peer": peer})
                connection.transport.abort()
            if idle:
                logger.info("closed %d idle connections", len(idle), extra={"connections": len(idle)})

    async def _close_stuck(self) -> None:
        """While memory is short, close connections that hold some without progress, so that others get it."""
        while True:
            await asyncio.sleep(_STUCK_CHECK_SECONDS)
            if not (self._memory.is_short and self._memory.has_waiting):
                continue
            holding = [connection for connection in self._connections if connection.held_bytes > FREE_BYTES]
            stuck = [connection for connection in holding if connection.seconds_stuck() >= _STUCK_SECONDS]
            for connection in stuck:
                connection.transport.abort()
            if stuck:
                logger.warning(
                    "closed %d connections: they held %d bytes of requests or responses without progress for %d "
                    "s, while others waited for memory (queued.max.request.bytes=%d); the first was from %s",
                    len(stuck),
                    sum(connection.held_bytes for connection in stuck),
                    _STUCK_SECONDS,
                    self._config.get_int("queued.max.request.bytes"),
                    stuck[0].transport.peer,
                )

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for listener in self._listeners:
            listener.close()

    async def close(self) -> None:
        """Close every connection."""
        self.stop_listening()
        for connection in list(self._connections):
            connection.transport.close()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)


def _address(transport: Transport) -> str:
    return transport.peer.rpartition(":")[0].strip("[]")
