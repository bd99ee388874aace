"""Stores for the store port's contract that need no separate servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar

from tailrace.cluster.store import Store
from tailrace.runtime.clock import Clock
from tailrace.stores.memory import MemorySpace, MemoryStore
from tailrace.stores.served import ServedStore
from tailrace.stores.server import StoreServer
from tailrace.stores.sqlite import SqliteStore
from tailrace.testing.clock import SimClock
from tailrace.testing.loop import SimLoop
from tailrace.testing.store import SimCoordination, SimStore, StoreFaults
from tests.contract.cable import Cable
from tests.contract.stores import StoreKind, Stores


class VirtualStores(Stores):
    """A key space in virtual time."""

    ttl_ms = 9_000

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.clock: Clock = SimClock(self.loop)

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            try:
                await test
            finally:
                await self.close()

        self.loop.run(whole())


class MemoryStores(VirtualStores):
    """Clients of one memory space."""

    def __init__(self) -> None:
        super().__init__(0)
        self._space = MemorySpace(self.clock)
        self._clients: list[MemoryStore] = []

    async def client(self) -> MemoryStore:
        self._clients.append(MemoryStore(self._space))
        return self._clients[-1]

    async def die(self, client: Store) -> None:
        assert isinstance(client, MemoryStore)
        client.abandon()
        self._clients.remove(client)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


class MemoryKind(StoreKind):
    can_be_cut = False
    can_restart = False

    def new(self, directory: Path) -> Stores:
        return MemoryStores()


class SimulatedStores(VirtualStores):
    """Clients of the simulated store, each on a host of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        faults = StoreFaults(slow=0.05, late_watch=0.1, late_expiry_seconds=(0.0, 5.0))
        self._coordination = SimCoordination(self.loop, self.loop.random_for("store"), faults)
        self._clients: list[SimStore] = []

    async def client(self) -> SimStore:
        self._clients.append(self._coordination.store(f"host-{len(self._clients)}"))
        return self._clients[-1]

    async def die(self, client: Store) -> None:
        assert isinstance(client, SimStore)
        self._coordination.crash(client.name)

    async def cut(self, client: Store) -> None:
        assert isinstance(client, SimStore)
        self._coordination.cut(client.name)

    async def mend(self, client: Store) -> None:
        assert isinstance(client, SimStore)
        self._coordination.heal(client.name)

    async def kill(self) -> None:
        self._coordination.cut()

    async def restart(self) -> None:
        self._coordination.heal()

    async def close(self) -> None:
        self._coordination.heal()
        for client in self._clients:
            await client.close()


class SimulatedKind1(StoreKind):
    seed: ClassVar[int] = 1

    def new(self, directory: Path) -> Stores:
        return SimulatedStores(self.seed)


class SimulatedKind2(SimulatedKind1):
    seed = 2


class SimulatedKind3(SimulatedKind1):
    seed = 3


class SqliteStores(Stores):
    """A file that one process owns, so there is one client."""

    ttl_ms = 1_000

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: SqliteStore | None = None

    async def client(self) -> SqliteStore:
        assert self._store is None, "a file has one owner"
        self._store = SqliteStore(str(self._path))
        return self._store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class SqliteKind(StoreKind):
    is_shared = False
    can_be_cut = False
    can_restart = False

    def new(self, directory: Path) -> Stores:
        return SqliteStores(directory / "metadata.sqlite")


class UnixStores(Stores):
    """A file that is served over a Unix socket, and a cable from each client to it."""

    ttl_ms = 3_000
    long_ttl_ms = 12_000

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket = directory / "store.sock"
        self._server: StoreServer | None = None
        self._cables: dict[ServedStore, Cable] = {}
        self._numbers = itertools.count()

    async def _start(self) -> None:
        self._server = StoreServer(str(self._directory / "metadata.sqlite"), str(self._socket), self.clock)
        await self._server.start()

    async def client(self) -> ServedStore:
        if self._server is None:
            await self._start()
        cable = Cable(self._socket)
        path = self._directory / f"cable-{next(self._numbers)}.sock"
        await cable.listen(path)
        # Less time for a call where a test waits for it to pass, and as much as a busy disk may need where none does.
        request_seconds = 2.0 if self.is_cut_off and not self._cables else 15.0
        client = ServedStore(str(path), self.clock, request_seconds=request_seconds)
        self._cables[client] = cable
        return client

    async def die(self, client: Store) -> None:
        assert isinstance(client, ServedStore)
        await self._cables[client].close()

    async def cut(self, client: Store) -> None:
        assert isinstance(client, ServedStore)
        self._cables[client].cut()

    async def mend(self, client: Store) -> None:
        assert isinstance(client, ServedStore)
        self._cables[client].mend()

    async def kill(self) -> None:
        assert self._server is not None
        await self._server.close()

    async def restart(self) -> None:
        await self._start()

    async def close(self) -> None:
        for client, cable in self._cables.items():
            cable.mend()
            await client.close()
            await cable.close()
        if self._server is not None:
            await self._server.close()
        # Aborted transports end in the next turn of the loop.
        await asyncio.sleep(0)


class UnixKind(StoreKind):
    def new(self, directory: Path) -> Stores:
        return UnixStores(directory)
