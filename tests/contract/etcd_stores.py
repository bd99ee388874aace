"""Etcd under the contract of the store port: one member, and three of which the leader dies."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import ClassVar

from tailrace.cluster.store import Store
from tailrace.stores.etcd import EtcdStore, open_etcd_store
from tests.contract.cable import Cable
from tests.contract.stores import StoreKind, Stores
from tests.support.etcd_process import EtcdCluster, EtcdMember


class EtcdStores(Stores):
    """A prefix of its own, and a cable from each client to each member."""

    ttl_ms = 2_000

    def __init__(self, cluster: EtcdCluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._cables: dict[EtcdStore, list[Cable]] = {}
        self._killed: EtcdMember | None = None

    async def client(self) -> Store:
        cables = [Cable(("127.0.0.1", member.client_port)) for member in self._cluster.members]
        endpoints = ["{}:{}".format(*await cable.listen()) for cable in cables]
        # Less time than usual for a call: some tests wait for it to pass.
        store = open_etcd_store(f"etcd://{','.join(endpoints)}{self._prefix}?timeout-ms=2000", self.clock)
        self._cables[store] = cables
        return store

    async def die(self, client: Store) -> None:
        assert isinstance(client, EtcdStore)
        await client.abandon()
        for cable in self._cables.pop(client):
            await cable.close()

    async def cut(self, client: Store) -> None:
        assert isinstance(client, EtcdStore)
        for cable in self._cables[client]:
            cable.cut()

    async def mend(self, client: Store) -> None:
        assert isinstance(client, EtcdStore)
        for cable in self._cables[client]:
            cable.mend()

    async def kill(self) -> None:
        self._killed = await asyncio.to_thread(self._cluster.leader)
        await asyncio.to_thread(self._killed.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._cluster.start)
        self._killed = None

    async def close(self) -> None:
        if self._killed is not None:
            await self.restart()
        for client, cables in list(self._cables.items()):
            await self.mend(client)
            await client.close()
            for cable in cables:
                await cable.close()


class EtcdKind(StoreKind):
    """An etcd of one member."""

    members: ClassVar[int] = 1

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cluster: EtcdCluster | None = None
        self._prefixes = itertools.count()

    def new(self, directory: Path) -> Stores:
        if self._cluster is None:
            self._cluster = EtcdCluster(self.directory, self.members)
            self._cluster.start()
        return EtcdStores(self._cluster, f"/test-{next(self._prefixes)}")

    def shutdown(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()


class EtcdClusterKind(EtcdKind):
    """An etcd of three members, which goes on when one of them is killed."""

    members = 3
