"""The stores under the contract of the store port, and the faults that tests inject.

`KINDS` is the registry. A kind is made once for a whole run of the tests, starts whatever it needs (servers) when its
first test comes and ends it in `shutdown`; for each test it gives a `Stores`: a new, empty key space with any number of
clients. Tests ask for the fixture with the powers they need (tests/contract/conftest.py):

| fixture             | what the test does to the store                     | kinds with      |
|---------------------|-----------------------------------------------------|-----------------|
| `stores`            | uses one client                                     | all             |
| `shared_stores`     | uses several clients, and lets some die             | `is_shared`     |
| `breakable_stores`  | cuts clients off, and mends that                    | `can_be_cut`    |
| `restarting_stores` | kills a server under its clients, and starts it again | `can_restart` |

To add a kind: subclass `StoreKind` and `Stores` in a module of its own beside this one, and add one line to `KINDS`.
`tests/contract/cable.py` is a cable to put between a client and a server (TCP or Unix socket): it can be silent, reset
and mended.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import uvloop

from tailrace.cluster.store import Store, Unavailable
from tailrace.runtime.clock import Clock
from tailrace.runtime.system.clock import SystemClock

T = TypeVar("T")

#: No test takes longer than this, on the slowest machine.
_TEST_SECONDS = 600.0


class Stores(ABC):
    """A new, empty key space for one test: its clients, and the faults that the test may inject."""

    #: A time to live, in milliseconds, for tests that wait for its end: as short as a busy machine lets it be.
    ttl_ms: int
    #: One for all others, within which a client that was cut off for one call has long found its way back.
    long_ttl_ms: int = 24_000
    #: The clock for the deadlines of sessions.
    clock: Clock = SystemClock()
    #: How long an expected condition may take to become true.
    patience_seconds: float = 120.0
    #: Whether the first client is to be cut off, and must not wait for an answer for long.
    is_cut_off: bool = False

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        """Run a test in its own loop, then close every client."""

        async def whole() -> None:
            try:
                async with asyncio.timeout(_TEST_SECONDS):
                    await test
            finally:
                await self.close()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until an expected condition is true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        while not await condition():
            assert loop.time() < deadline, f"not within {self.patience_seconds} s: {what}"
            await asyncio.sleep(0.01)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to a call that may be made again, and is while there is none.

        Who is to be cut off waits for no answer for long, and a busy machine may need longer for one.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        while True:
            try:
                return await call()
            except Unavailable:
                assert loop.time() < deadline, f"not within {self.patience_seconds} s: an answer"
            await asyncio.sleep(0.01)

    @abstractmethod
    async def client(self) -> Store:
        """A further client with a connection of its own; closed when the test ends."""

    async def die(self, client: Store) -> None:
        """End a client as SIGKILL ends its process, without a goodbye. It is not used afterwards."""
        raise NotImplementedError

    async def cut(self, client: Store) -> None:
        """Lose everything that goes between a client and the store, without telling either, until `mend`."""
        raise NotImplementedError

    async def mend(self, client: Store) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        """Kill a server as SIGKILL does: the only one, or the one whose death hurts most of several."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Restart the killed server on its data."""
        raise NotImplementedError

    @abstractmethod
    async def close(self) -> None:
        """Close the remaining clients, and remove what was created for this test."""


class StoreKind(ABC):
    """One kind of store: what it can do, and how to create one."""

    is_shared: ClassVar[bool] = True
    can_be_cut: ClassVar[bool] = True
    can_restart: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        #: For everything that lives longer than a test.
        self.directory = directory

    @abstractmethod
    def new(self, directory: Path) -> Stores:
        """A key space for one test, which has its own directory."""

    def shutdown(self) -> None:  # noqa: B027  most have started nothing
        """End what was started for all tests."""


#: The class of each kind, as `module:class`: those modules import this one.
KINDS: dict[str, str] = {
    "memory": "tests.contract.local_stores:MemoryKind",
    "simulated-1": "tests.contract.local_stores:SimulatedKind1",
    "simulated-2": "tests.contract.local_stores:SimulatedKind2",
    "simulated-3": "tests.contract.local_stores:SimulatedKind3",
    "sqlite": "tests.contract.local_stores:SqliteKind",
    "unix": "tests.contract.local_stores:UnixKind",
    "etcd": "tests.contract.ensemble_stores:EtcdKind",
    "etcd-3": "tests.contract.ensemble_stores:EtcdClusterKind",
    "zookeeper": "tests.contract.ensemble_stores:ZooKeeperKind",
    "zookeeper-3": "tests.contract.ensemble_stores:ZooKeeperEnsembleKind",
}


def kind_class(name: str) -> type[StoreKind]:
    module, _, attribute = KINDS[name].partition(":")
    found: type[StoreKind] = getattr(import_module(module), attribute)
    return found


def kinds_that(can: Callable[[type[StoreKind]], bool]) -> list[str]:
    """The names of the kinds with a capability."""
    return [name for name in KINDS if can(kind_class(name))]


class RunningKinds:
    """The kinds requested so far, each created once."""

    def __init__(self, make_directory: Callable[[str], Path]) -> None:
        self._make_directory = make_directory
        self._kinds: dict[str, StoreKind] = {}

    def get(self, name: str) -> StoreKind:
        if name not in self._kinds:
            self._kinds[name] = kind_class(name)(self._make_directory(name))
        return self._kinds[name]

    def shutdown(self) -> None:
        for kind in self._kinds.values():
            kind.shutdown()
