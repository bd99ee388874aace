"""ZooKeeper under the contract of the store port: one server, and three of which the leader dies."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import ClassVar

from tailrace.cluster.store import Store
from tailrace.stores.zookeeper import ZooKeeperStore, open_zookeeper_store
from tests.contract.cable import Cable
from tests.contract.stores import StoreKind, Stores
from tests.support.zookeeper_process import TICK_MS, ZooKeeperEnsemble, ZooKeeperServer


class ZooKeeperStores(Stores):
    """A prefix of its own, and a cable from each client to each server."""

    ttl_ms = 4 * TICK_MS

    def __init__(self, ensemble: ZooKeeperEnsemble, prefix: str) -> None:
        self._ensemble = ensemble
        self._prefix = prefix
        self._cables: dict[ZooKeeperStore, list[Cable]] = {}
        self._killed: ZooKeeperServer | None = None

    async def client(self) -> Store:
        cables = [Cable(("127.0.0.1", server.client_port)) for server in self._ensemble.servers]
        endpoints = ["{}:{}".format(*await cable.listen()) for cable in cables]
        # Less time than usual for a call: some tests wait for it to pass.
        address = f"zookeeper://{','.join(endpoints)}{self._prefix}?timeout-ms=2000"
        store = open_zookeeper_store(address, self.clock)
        self._cables[store] = cables
        return store

    async def die(self, client: Store) -> None:
        assert isinstance(client, ZooKeeperStore)
        await client.abandon()
        for cable in self._cables.pop(client):
            await cable.close()

    async def cut(self, client: Store) -> None:
        assert isinstance(client, ZooKeeperStore)
        for cable in self._cables[client]:
            cable.cut()

    async def mend(self, client: Store) -> None:
        assert isinstance(client, ZooKeeperStore)
        for cable in self._cables[client]:
            cable.mend()

    async def kill(self) -> None:
        self._killed = await asyncio.to_thread(self._ensemble.leader)
        await asyncio.to_thread(self._killed.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._ensemble.start)
        self._killed = None

    async def close(self) -> None:
        if self._killed is not None:
            await self.restart()
        for client, cables in list(self._cables.items()):
            await self.mend(client)
            await client.close()
            for cable in cables:
                await cable.close()


class ZooKeeperKind(StoreKind):
    """A ZooKeeper of one server."""

    servers: ClassVar[int] = 1

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ensemble: ZooKeeperEnsemble | None = None
        self._prefixes = itertools.count()

    def new(self, directory: Path) -> Stores:
        if self._ensemble is None:
            self._ensemble = ZooKeeperEnsemble(self.directory, self.servers)
            self._ensemble.start()
        return ZooKeeperStores(self._ensemble, f"/test-{next(self._prefixes)}")

    def shutdown(self) -> None:
        if self._ensemble is not None:
            self._ensemble.stop()


class ZooKeeperEnsembleKind(ZooKeeperKind):
    """A ZooKeeper of three servers, which goes on when one of them is killed."""

    servers = 3
