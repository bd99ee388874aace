"""A simulated cluster: machines with real brokers, one network, one store, one virtual time.

Owns the life of each machine's process: it is launched, stopped, killed, unplugged, paused, wiped, and launched again
by itself if its start failed, as a service manager does. Each process runs in its own context, so that nothing of a
paused or dead one runs. This module must not know what is done to the cluster, nor what is expected of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from tailrace.broker.assembly import Broker
from tailrace.cluster.store import Check, Unavailable, Write
from tailrace.errors import TailraceError
from tailrace.runtime import Runtime
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import PORT, TinySegments
from tailrace.testing.process import Process
from tailrace.testing.store import SimCoordination, SimStore, StoreFaults
from tailrace.testing.trace import Trace

T = TypeVar("T")

#: How long a service manager waits before it restarts a process that ended, and before it kills one that does not stop.
_RELAUNCH_SECONDS = 1.0
_STOP_SECONDS = 45.0
#: Rare faults that a store always has.
USUAL_STORE_FAULTS = StoreFaults(
    slow=0.005, refused=0.002, unanswered=0.003, late=0.002, denied=0.001, too_large=0.001, late_watch=0.01
)

SETTINGS = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "6000",
    "default.replication.factor": "3",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "1000",
    "leader.imbalance.check.interval.seconds": "20",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "replica.fetch.wait.max.ms": "500",
    "replica.lag.time.max.ms": "4000",
    "replica.socket.timeout.ms": "4000",
}


class Interference(NamedTuple):
    """What happens to a transaction: how long it is delayed, and its fate if that is decided."""

    held_back_seconds: float = 0.0
    fate: str | None = None


UNDISTURBED = Interference()


class WatchedStore(SimStore):
    """A client of the store that tells the cluster which broker makes a change, and what is about to change."""

    def __init__(self, cluster: SimCluster, name: str, clock: SimClock) -> None:
        super().__init__(cluster.coordination, name, clock)
        #: Whether requests in flight to the store are lost with the machine that sent them.
        self.is_cut_short = False
        self._cluster = cluster

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        held_back_seconds, fate = self._cluster.on_write_sent(self.name, writes)
        if held_back_seconds:
            await asyncio.sleep(held_back_seconds)
        self.next_fate = fate
        return await super().txn(checks, writes)

    async def _call(self, about: str, work: Callable[[], T], *, is_change: bool = False) -> T:
        def named() -> T:
            if self.is_cut_short:
                raise LookupError(f"{self.name} has lost its power")
            self._cluster.writer = self.name
            try:
                return work()
            finally:
                self._cluster.writer = ""

        return await super()._call(about, named, is_change=is_change)


class ClusterNode:
    """A machine of the cluster: its disk and clock outlive the broker's process."""

    def __init__(self, cluster: SimCluster, broker_id: int, settings: Mapping[str, str]) -> None:
        loop = cluster.loop
        self.broker_id = broker_id
        self.name = f"b{broker_id}"
        self.clock = SimClock(loop)
        self.disk = self._new_disk(loop, 0)
        self.broker: Broker | None = None
        self.process: Process | None = None
        self._store: WatchedStore | None = None
        #: Whether the broker has started, and is not being stopped.
        self.is_serving = False
        #: Whether it should run: then it is launched again if it ends by itself.
        self.is_wanted = False
        self.launches = 0
        #: When its last process ended.
        self.ended_at = -1.0
        self._wipes = 0
        self._cluster = cluster
        self._random: Random = loop.random_for(f"{self.name} broker")
        self._secrets = loop.random_for(f"{self.name} secrets")
        self._changed: list[asyncio.Future[None]] = []
        self._config = TinySegments(
            {
                **SETTINGS,
                "node.id": str(broker_id),
                "listeners": f"PLAINTEXT://{self.name}:{PORT}",
                "log.dirs": "/data",
                **settings,
            }
        )

    def _new_disk(self, loop: SimLoop, number: int) -> SimDisk:
        return SimDisk(loop.random_for(f"b{self.broker_id} disk {number}"))

    @property
    def is_up(self) -> bool:
        """True if there is a process, running or paused."""
        return self.process is not None

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    # --- life of the process

    def launch(self) -> None:
        """Start a process with a broker on whatever the disk has."""
        if self.process is not None:
            return
        cluster = self._cluster
        self.is_wanted = True
        self.launches += 1
        process = self.process = Process(self.name)
        process.is_charged = cluster.charges_processes
        cluster.note(f"{self.name} is launched")
        cluster.network.restart(self.name)
        host = cluster.network.host(self.name)
        host.process = process
        helper = SimHelper(self.disk, cluster.loop.random_for(f"{self.name} helper {self.launches}"))
        runtime = Runtime(self.clock, self.disk, host, self._random, helper, secrets=self._secrets)
        self._store = cluster.store_for(self.name, self.clock)
        broker = self.broker = process.context.run(Broker, self._config, runtime, self._store)
        broker.on_fatal = lambda error: self._gave_up(process, error)
        self._spawn(process, self._serve(process, broker))

    def _spawn(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        self._cluster.loop.create_task(work, context=process.context.copy())

    async def _serve(self, process: Process, broker: Broker) -> None:
        try:
            await broker.start()
        except (TailraceError, OSError) as error:
            # To a service manager it just ended, and may succeed the next time.
            self._cluster.note(f"{self.name} did not start: {error!r}")
            if not isinstance(error, Unavailable):
                self._cluster.refused_starts.append((self._cluster.loop.time(), self.name, str(error)))
            self._ended(process)
            self._cluster.later(_RELAUNCH_SECONDS, self._relaunch)
            return
        self.is_serving = True
        self._cluster.note(f"{self.name} serves")
        self._tell()

    def _relaunch(self) -> None:
        if self.is_wanted and self.process is None:
            self.launch()

    def _gave_up(self, process: Process, error: BaseException) -> None:
        """Note that an indispensable part of the broker failed, which is always a bug here."""
        self._cluster.note(f"{self.name} cannot go on: {error!r}")
        self._cluster.fatal.append((self.name, error))
        if self.process is process:
            self._ended(process)
            self._cluster.later(_RELAUNCH_SECONDS, self._relaunch)

    def _ended(self, process: Process, *, silently: bool = False) -> None:
        """End the process with its sockets and its connection to the store."""
        if self.process is not process:
            return
        self.process = self.broker = None
        self.is_serving = False
        self.ended_at = self._cluster.loop.time()
        self._cluster.loop.end(process)
        self.disk.kill()
        self._cluster.coordination.crash(self.name)
        self._cluster.network.crash(self.name, silently=silently)
        self._tell()

    async def stop(self) -> None:
        """Stop the broker as SIGTERM does, then as SIGKILL does if it does not stop."""
        self.is_wanted = False
        process, broker = self.process, self.broker
        if process is None or broker is None:
            return
        self.is_serving = False

        async def stop() -> None:
            await broker.stop()
            self._cluster.note(f"{self.name} has stopped")
            self._ended(process)

        self._spawn(process, stop())
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                while self.process is process:
                    await self._change()
        except TimeoutError:
            self._cluster.note(f"{self.name} does not stop and is killed")
            self.kill()

    def kill(self) -> None:
        """End the process as SIGKILL does: what it wrote is in the page cache and stays."""
        self.is_wanted = False
        if self.process is not None:
            self._ended(self.process)

    def unplug(self) -> None:
        """Cut the power: unsynced data may be lost or torn."""
        self.is_wanted = False
        if self._store is not None:
            # A leader that removes all others from an ISR is the only one left with the data that all had. If it loses
            # some of it at that very moment, no promise was broken.
            self._store.is_cut_short = True
        if self.process is not None:
            self._ended(self.process, silently=True)
        self.disk.crash()

    def wipe(self) -> None:
        """Replace the machine by one with an empty disk."""
        self.unplug()
        self._wipes += 1
        self.disk = self._new_disk(self._cluster.loop, self._wipes)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        if self.process is not None:
            self.process.pause()
            self._cluster.coordination.pause(self.name)

    def resume(self) -> None:
        """Continue a stopped process."""
        if self.process is not None and self.process.is_paused:
            self._cluster.coordination.resume(self.name)
            self._cluster.loop.resume(self.process)

    def wake(self, slept_seconds: float) -> None:
        """Continue a machine that was paused because it was suspended: its timers did not count that time."""
        if self.process is not None and self.process.is_paused:
            self.clock.slept_seconds += slept_seconds
            self._cluster.coordination.resume(self.name, renews_at_once=False)
            self._cluster.loop.wake(self.process, slept_seconds)

    async def wait_until_serving(self) -> None:
        while not self.is_serving:
            await self._change()

    async def _change(self) -> None:
        """Wait until the process has started or ended."""
        changed: asyncio.Future[None] = self._cluster.loop.create_future()
        self._changed.append(changed)
        await changed

    def _tell(self) -> None:
        changed, self._changed = self._changed, []
        for waiter in changed:
            if not waiter.done():
                waiter.set_result(None)


class SimCluster:
    """Machines, the network between them, and the store."""

    def __init__(self, loop: SimLoop, brokers: int, settings: Mapping[str, str] | None = None) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, loop.random_for("network"))
        self.coordination = SimCoordination(loop, loop.random_for("store"), USUAL_STORE_FAULTS)
        #: What happened, for readers of a failure, including everything that the brokers logged.
        self.events = Trace(keep=20_000)
        #: Brokers that ended by themselves while they served.
        self.fatal: list[tuple[str, BaseException]] = []
        #: Brokers that refused to start, when and why.
        self.refused_starts: list[tuple[float, str, str]] = []
        #: Whether the steps of processes that start from now on cost time.
        self.charges_processes = False
        #: The host whose change the store is applying.
        self.writer = ""
        #: Called with the writes of a transaction before it is sent; returns what to do to it.
        self.on_write_sent: Callable[[str, Sequence[Write]], Interference] = lambda name, writes: UNDISTURBED
        self.nodes = [ClusterNode(self, broker_id, settings or {}) for broker_id in range(1, brokers + 1)]

    def store_for(self, name: str, clock: SimClock) -> WatchedStore:
        """Return the store's client for a process that starts on a host."""
        return self.coordination.adopt(WatchedStore(self, name, clock))

    def node(self, broker_id: int) -> ClusterNode:
        return self.nodes[broker_id - 1]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bootstrap addresses."""
        return [(node.name, PORT) for node in self.nodes]

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call something later, outside of every process."""
        self.loop.call_later(seconds, callback, context=self.network.context)

    def note(self, event: str) -> None:
        self.events.add(f"{self.loop.time():10.3f} {event}")

    def digest(self) -> str:
        """Return a value that is equal for two runs of one seed only."""
        digests = [self.network.trace.digest, self.coordination.trace.digest, self.events.digest, self.loop.steps]
        digests += [node.disk.trace.digest for node in self.nodes]
        return "-".join(f"{number:x}" for number in digests)


class ClusterLog(logging.Handler):
    """Keeps what the brokers log, by node, and detects what must never be logged."""

    #: A broker that logs this has lost data that it had promised, or failed in an unexpected way.
    FORBIDDEN = ("were committed and are lost", "fault of the broker")

    def __init__(self, cluster: SimCluster, name_of: Callable[[], str]) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster
        self._name_of = name_of
        self.forbidden: list[str] = []
        #: Topics that may lose committed records.
        self.tolerated: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message = f"{message} ({record.exc_info[1]!r})"
        line = f"{self._name_of()} {record.levelname} {message}"
        self._cluster.note(line)
        if message.startswith(tuple(f"{topic}-" for topic in self.tolerated)):
            return
        if any(words in message for words in self.FORBIDDEN):
            self.forbidden.append(line)
