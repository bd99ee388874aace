"""etcd and ZooKeeper for the store port's contract: one server, and three of which tests kill the leader."""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from tailrace.cluster.store import Store, Unavailable
from tailrace.runtime.clock import Clock
from tailrace.stores.etcd import EtcdStore, open_etcd_store
from tailrace.stores.zookeeper import ZooKeeperStore, open_zookeeper_store
from tests.contract.cable import Cable
from tests.contract.stores import StoreKind, Stores
from tests.support.stores.etcd_process import EtcdCluster
from tests.support.stores.zookeeper_process import TICK_MS, ZooKeeperEnsemble

_SHORT_MS = 3_000
_LONG_MS = 15_000
#: Longer than a Java server takes to restart on a busy machine.
_ZOOKEEPER_MAX_TTL_MS = 120_000


class Server(Protocol):
    """One process of an ensemble."""

    def kill(self) -> None: ...


class Ensemble(Protocol):
    """The servers of one store."""

    @property
    def endpoints(self) -> Sequence[str]: ...

    def leader(self) -> Server: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class EnsembleStores(Stores):
    """A prefix of its own, and a cable from each client to each server."""

    def __init__(
        self,
        ensemble: Ensemble,
        open_store: Callable[[str, Clock], EtcdStore | ZooKeeperStore],
        scheme: str,
        prefix: str,
        ttl_ms: int,
    ) -> None:
        self.ttl_ms = ttl_ms
        self._ensemble = ensemble
        self._open = open_store
        self._scheme = scheme
        self._prefix = prefix
        self._cables: dict[Store, list[Cable]] = {}
        self._has_killed = False

    async def client(self) -> Store:
        addresses = [endpoint.rpartition(":") for endpoint in self._ensemble.endpoints]
        cables = [Cable((host, int(port))) for host, _, port in addresses]
        endpoints = ["{}:{}".format(*await cable.listen()) for cable in cables]
        # Less time than usual for a call where a test waits for it to pass, and as much as a busy machine may need
        # where none does.
        timeout_ms = _SHORT_MS if self.is_cut_off and not self._cables else _LONG_MS
        store = self._open(f"{self._scheme}://{','.join(endpoints)}{self._prefix}?timeout-ms={timeout_ms}", self.clock)
        self._cables[store] = cables
        await self.until(partial(_answers, store), "the store answers a new client")
        return store

    async def die(self, client: Store) -> None:
        assert isinstance(client, EtcdStore | ZooKeeperStore)
        await client.abandon()
        for cable in self._cables.pop(client):
            await cable.close()

    async def cut(self, client: Store) -> None:
        for cable in self._cables[client]:
            cable.cut()

    async def mend(self, client: Store) -> None:
        for cable in self._cables[client]:
            cable.mend()

    async def kill(self) -> None:
        leader = await asyncio.to_thread(self._ensemble.leader)
        self._has_killed = True
        await asyncio.to_thread(leader.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._ensemble.start)
        self._has_killed = False

    async def close(self) -> None:
        if self._has_killed:
            await self.restart()
        for client, cables in list(self._cables.items()):
            await self.mend(client)
            await client.close()
            for cable in cables:
                await cable.close()


async def _answers(store: Store) -> bool:
    """Whether a client has reached the store, which takes a while on a busy machine."""
    try:
        await store.get("/anything")
    except Unavailable:
        return False
    return True


class _EnsembleKind(StoreKind):
    """Servers that are started for the first test, and serve all of them."""

    servers: ClassVar[int] = 1

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ensemble: Ensemble | None = None
        self._prefixes = itertools.count()

    def new(self, directory: Path) -> Stores:
        if self._ensemble is None:
            ensemble = self.make()
            ensemble.start()
            # Only now: if it did not start, the next test tries again.
            self._ensemble = ensemble
        return self.stores(self._ensemble, f"/test-{next(self._prefixes)}")

    @abstractmethod
    def make(self) -> Ensemble:
        """The servers, not yet started."""

    @abstractmethod
    def stores(self, ensemble: Ensemble, prefix: str) -> Stores:
        """Clients of what is below a prefix."""

    def shutdown(self) -> None:
        if self._ensemble is not None:
            self._ensemble.stop()


class EtcdKind(_EnsembleKind):
    """An etcd of one member."""

    def make(self) -> Ensemble:
        return EtcdCluster(self.directory, self.servers)

    def stores(self, ensemble: Ensemble, prefix: str) -> Stores:
        return EnsembleStores(ensemble, open_etcd_store, "etcd", prefix, ttl_ms=4_000)


class EtcdClusterKind(EtcdKind):
    """An etcd of three members, which survives the death of one."""

    servers = 3


class ZooKeeperKind(_EnsembleKind):
    """A ZooKeeper of one server."""

    def make(self) -> Ensemble:
        settings = {"maxSessionTimeout": str(_ZOOKEEPER_MAX_TTL_MS)}
        return ZooKeeperEnsemble(self.directory, self.servers, settings)

    def stores(self, ensemble: Ensemble, prefix: str) -> Stores:
        return EnsembleStores(ensemble, open_zookeeper_store, "zookeeper", prefix, ttl_ms=8 * TICK_MS)


class ZooKeeperEnsembleKind(ZooKeeperKind):
    """A ZooKeeper of three servers, which survives the death of one."""

    servers = 3
