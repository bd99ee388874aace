"""What goes wrong in a simulated cluster, by seed: each fault begins, lasts for a while, and is healed.

Owns which faults are under way, and how far they may go: power is never cut where it would lose what was promised, that
is, where no other in-sync replica of a partition is running whole. Every fault is written into the history with the
brokers that failed by it, for promises that hold only up to so many failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tailrace.cluster.image import TopicImage
from tailrace.cluster.keys import TOPICS
from tailrace.cluster.store import Write
from tailrace.stores.watching import directory_of
from tailrace.testing.cluster import USUAL_STORE_FAULTS, ClusterNode, SimCluster
from tailrace.testing.cluster_history import ClusterHistory, Failure
from tailrace.testing.cluster_watch import ClusterWatch
from tailrace.testing.store import NASTY

_MOST_SKEW_MS = 20 * 60_000
#: How often each kind is chosen, in parts.
_WEIGHTS = {
    "kill": 5,
    "power cut": 5,
    "empty disk": 2,
    "stop": 3,
    "kill all": 1,
    "pause": 6,
    "isolate": 4,
    "link": 3,
    "one way": 4,
    "slow": 3,
    "not fetching": 3,
    "store cut": 4,
    "store away": 2,
    "store nasty": 4,
    "clock": 2,
    "resets": 2,
    "bounce": 2,
    "join": 3,
}


@dataclass(slots=True)
class ClusterFaults:
    """Everything that is done to one cluster."""

    cluster: SimCluster
    history: ClusterHistory
    watch: ClusterWatch
    random: Random
    clients: Sequence[str]
    #: How many faults of each kind there were.
    injected: dict[str, int] = field(default_factory=dict)
    #: Whether power may be cut in the moment in which a replica is about to join the ISR again.
    ambushes: bool = True
    _under_way: list[asyncio.Task[None]] = field(default_factory=list)
    #: Brokers that something is being done to, so that no two faults start and stop one process.
    _busy: dict[int, None] = field(default_factory=dict)
    #: Brokers that lost what they had not synced and may still be in an ISR for it, with the epoch of each state.
    _damaged: dict[int, None] = field(default_factory=dict)
    _is_over: bool = False

    @property
    def count(self) -> int:
        return sum(self.injected.values())

    async def run(self, until: float, at_least: int) -> None:
        """Let things go wrong until a time, and until there were enough of them."""
        self.cluster.on_write_sent = self._write_sent
        while self.cluster.loop.time() < until or self.count < at_least:
            await asyncio.sleep(self.random.expovariate(1 / 6.0) + 0.5)
            self._begin(self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])
            self._under_way = [task for task in self._under_way if not _is_fine(task)]
        self._is_over = True

    async def heal(self) -> None:
        """Wait for the end of every fault, and see to it that every broker runs."""
        self._is_over = True
        for task in self._under_way:
            await task
        self.cluster.network.heal()
        self.cluster.coordination.heal()
        self.cluster.coordination.faults = USUAL_STORE_FAULTS
        self.cluster.network.slowness.clear()
        for node in self.cluster.nodes:
            node.launch()

    # --- beginning

    def _begin(self, kind: str) -> None:
        fault = self._faults().get(kind)
        work = None if fault is None else fault()
        if work is None:
            return  # it cannot be done now
        self._spawn(kind, work)

    def _spawn(self, kind: str, work: Coroutine[Any, Any, None]) -> None:
        self.injected[kind] = self.injected.get(kind, 0) + 1
        self._under_way.append(self.cluster.loop.create_task(work, context=self.cluster.network.context.copy()))

    def _faults(self) -> dict[str, Callable[[], Coroutine[Any, Any, None] | None]]:
        return {
            "kill": lambda: self._on_idle(self._kill),
            "power cut": lambda: self._on_idle(self._cut_power, self._may_lose_power),
            "empty disk": lambda: self._on_idle(self._wipe, self._may_lose_power),
            "stop": lambda: self._on_idle(self._stop),
            "kill all": self._kill_all,
            "pause": lambda: self._on_idle(self._pause),
            "isolate": lambda: self._on_any(self._isolate),
            "link": self._cut_link,
            "one way": self._cut_one_way,
            "slow": lambda: self._on_any(self._slow_down),
            "not fetching": lambda: self._on_any(self._stall),
            "store cut": lambda: self._on_any(self._cut_from_store),
            "store away": self._store_away,
            "store nasty": self._store_nasty,
            "clock": lambda: self._on_any(self._set_clock),
            "resets": self._reset_connections,
            "bounce": lambda: self._on_idle(self._bounce),
            "join": self._join,
        }

    def _on_idle(
        self,
        fault: Callable[[ClusterNode], Coroutine[Any, Any, None]],
        may: Callable[[ClusterNode], bool] = lambda node: True,
    ) -> Coroutine[Any, Any, None] | None:
        """Do something to the process of a broker, to which nothing of that kind is being done."""
        idle = [node for node in self.cluster.nodes if node.is_serving and node.broker_id not in self._busy]
        idle = [node for node in idle if may(node) and self._may_go(node)]
        # Some of it has to go on: of three brokers one always runs, but for the moment in which all are killed.
        if not idle or len(self._busy) >= max(2, len(self.cluster.nodes) - 2):
            return None
        return self._occupied(self.random.choice(idle), fault)

    def _on_any(self, fault: Callable[[ClusterNode], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, None] | None:
        return fault(self.random.choice(self.cluster.nodes))

    async def _occupied(self, node: ClusterNode, fault: Callable[[ClusterNode], Coroutine[Any, Any, None]]) -> None:
        self._busy[node.broker_id] = None
        try:
            await fault(node)
        finally:
            del self._busy[node.broker_id]

    def _duration(self) -> float:
        """Mostly for longer or shorter than a session, now and then for a moment."""
        return self.random.choice([self.random.uniform(0.05, 1.0), self.random.uniform(1.0, 14.0)])

    def _note(self, what: str) -> None:
        self.cluster.note(f"FAULT {what}")

    def _failed(self, kind: str, *brokers: int, is_of_either: bool = False) -> Failure:
        return self.history.failed(kind, brokers, is_of_either=is_of_either)

    async def _lasts(self, failure: Failure, seconds: float | None = None) -> None:
        await asyncio.sleep(self._duration() if seconds is None else seconds)
        failure.ended_at = self.cluster.loop.time()

    # --- how far it may go

    def _states(self) -> list[tuple[int, ...]]:
        return [state.isr for topic in self.watch.topics.values() for state in topic.partitions]

    def _may_lose_power(self, node: ClusterNode) -> bool:
        """Whether every partition that a broker is in sync with is whole on another one that runs and is in sync."""
        return not self._damaged and all(
            any(self._is_whole(broker_id) for broker_id in isr if broker_id != node.broker_id)
            for isr in self._states()
            if node.broker_id in isr
        )

    def _is_whole(self, broker_id: int) -> bool:
        node = self.cluster.node(broker_id)
        return node.is_serving and broker_id not in self._damaged and broker_id not in self._busy

    def _may_go(self, node: ClusterNode) -> bool:
        """Whether the process may end while another broker is still taken for in sync with what it has lost."""
        return not any(
            node.broker_id in isr and any(broker_id in self._damaged for broker_id in isr) for isr in self._states()
        )

    async def _settle_damage(self, node: ClusterNode) -> None:
        """Wait until a broker that lost something counts for nothing that it has lost."""
        await node.wait_until_serving()
        self._damaged.pop(node.broker_id, None)

    # --- processes

    async def _kill(self, node: ClusterNode) -> None:
        self._note(f"kill {node.name}")
        failure = self._failed("kill", node.broker_id)
        node.kill()
        await asyncio.sleep(self._duration())
        node.launch()
        await node.wait_until_serving()
        failure.ended_at = self.cluster.loop.time()

    async def _cut_power(self, node: ClusterNode) -> None:
        self._note(f"power cut at {node.name}")
        await self._lose(node, node.unplug)

    async def _wipe(self, node: ClusterNode) -> None:
        self._note(f"{node.name} is replaced by a machine with an empty disk")
        await self._lose(node, node.wipe)

    async def _lose(self, node: ClusterNode, how: Callable[[], None]) -> None:
        self._damaged[node.broker_id] = None
        failure = self._failed("power", node.broker_id)
        how()
        await asyncio.sleep(self._duration())
        node.launch()
        await self._settle_damage(node)
        failure.ended_at = self.cluster.loop.time()

    async def _stop(self, node: ClusterNode) -> None:
        self._note(f"stop {node.name}")
        failure = self._failed("stop", node.broker_id)
        await node.stop()
        await asyncio.sleep(self._duration())
        node.launch()
        await node.wait_until_serving()
        failure.ended_at = self.cluster.loop.time()

    async def _bounce(self, node: ClusterNode) -> None:
        """Kill a broker again while it starts."""
        self._note(f"bounce {node.name}")
        failure = self._failed("bounce", node.broker_id)
        for _ in range(self.random.randint(2, 4)):
            node.kill()
            await asyncio.sleep(self.random.uniform(0.01, 0.5))
            node.launch()
            await asyncio.sleep(self.random.uniform(0.01, 2.0))
        node.launch()
        await node.wait_until_serving()
        failure.ended_at = self.cluster.loop.time()

    def _join(self) -> Coroutine[Any, Any, None] | None:
        """Start a broker that was never there."""
        new = [node for node in self.cluster.nodes if not node.launches]
        return self._joined(new[0]) if new else None

    async def _joined(self, node: ClusterNode) -> None:
        self._note(f"{node.name} joins")
        node.launch()
        await node.wait_until_serving()

    def _kill_all(self) -> Coroutine[Any, Any, None] | None:
        if self._busy or self._damaged:
            return None
        return self._all_killed()

    async def _all_killed(self) -> None:
        self._note("kill all")
        nodes = [node for node in self.cluster.nodes if node.launches]
        failure = self._failed("kill all", *[node.broker_id for node in nodes])
        self._busy.update(dict.fromkeys(node.broker_id for node in nodes))
        for node in nodes:
            node.kill()
        order = self.random.sample(nodes, len(nodes))
        for node in order:
            await asyncio.sleep(self.random.uniform(0.0, 4.0))
            node.launch()
        for node in order:
            await node.wait_until_serving()
            del self._busy[node.broker_id]
        failure.ended_at = self.cluster.loop.time()

    async def _pause(self, node: ClusterNode) -> None:
        self._note(f"pause {node.name}")
        failure = self._failed("pause", node.broker_id)
        node.pause()
        await self._lasts(failure)
        self._note(f"resume {node.name}")
        node.resume()

    # --- the network

    async def _isolate(self, node: ClusterNode) -> None:
        """Cut a broker off from the others, and from some clients."""
        others = [other.name for other in self.cluster.nodes if other is not node]
        others += [client for client in self.clients if self.random.random() < 0.3]
        self._note(f"isolate {node.name} from {' '.join(others)}")
        failure = self._failed("isolate", node.broker_id)
        for other in others:
            self.cluster.network.cut(node.name, other)
        with_store = self.random.random() < 0.3
        if with_store:
            self.cluster.coordination.cut(node.name)
        await self._lasts(failure)
        for other in others:
            self.cluster.network.heal(node.name, other)
        if with_store:
            self.cluster.coordination.heal(node.name)
        self._note(f"{node.name} is isolated no more")

    async def _cut_link(self) -> None:
        one, other = self.random.sample(self.cluster.nodes, 2)
        self._note(f"cut {one.name} - {other.name}")
        failure = self._failed("link", one.broker_id, other.broker_id, is_of_either=True)
        self.cluster.network.cut(one.name, other.name)
        await self._lasts(failure)
        self.cluster.network.heal(one.name, other.name)

    async def _cut_one_way(self) -> None:
        """What one broker sends is lost, to another one or to all; what it receives is not."""
        one, other = self.random.sample(self.cluster.nodes, 2)
        to_all = self.random.random() < 0.5
        targets = [node for node in self.cluster.nodes if node is not one] if to_all else [other]
        self._note(f"cut {one.name} > {' '.join(node.name for node in targets)}")
        if to_all:
            failure = self._failed("one way", one.broker_id)
        else:
            failure = self._failed("one way", one.broker_id, other.broker_id, is_of_either=True)
        for target in targets:
            self.cluster.network.cut(one.name, target.name, one_way=True)
        await self._lasts(failure)
        for target in targets:
            self.cluster.network.heal(one.name, target.name)

    async def _slow_down(self, node: ClusterNode) -> None:
        """Let what a broker sends and receives take so long that connections overtake each other by far."""
        factor = self.random.choice([10.0, 100.0, 400.0])
        self._note(f"{node.name} is {factor:.0f} times slower")
        failure = self._failed("slow", node.broker_id)
        self.cluster.network.slowness[node.name] = factor
        await self._lasts(failure)
        self.cluster.network.slowness.pop(node.name, None)

    async def _stall(self, node: ClusterNode) -> None:
        self._note(f"{node.name} does not fetch")
        failure = self._failed("not fetching", node.broker_id)
        self.cluster.network.stall(node.name)
        await self._lasts(failure)
        self.cluster.network.unstall(node.name)

    async def _reset_connections(self) -> None:
        self._note("resets")
        names = [node.name for node in self.cluster.nodes] + list(self.clients)
        for _ in range(self.random.randint(1, 8)):
            self.cluster.network.reset(*self.random.sample(names, 2))
            await asyncio.sleep(self.random.uniform(0.0, 0.5))

    # --- the store and the clocks

    async def _cut_from_store(self, node: ClusterNode) -> None:
        self._note(f"cut {node.name} from the store")
        failure = self._failed("store cut", node.broker_id)
        self.cluster.coordination.cut(node.name)
        await self._lasts(failure)
        self.cluster.coordination.heal(node.name)

    async def _store_away(self) -> None:
        self._note("the store is away")
        names = [node.name for node in self.cluster.nodes]
        failure = self._failed("store away", *[node.broker_id for node in self.cluster.nodes])
        self.cluster.coordination.cut(*names)
        await self._lasts(failure)
        self.cluster.coordination.heal(*names)

    async def _store_nasty(self) -> None:
        self._note("the store is nasty")
        self.cluster.coordination.faults = NASTY
        await asyncio.sleep(self.random.uniform(2.0, 15.0))
        self.cluster.coordination.faults = USUAL_STORE_FAULTS

    async def _set_clock(self, node: ClusterNode) -> None:
        skew_ms = self.random.randint(-_MOST_SKEW_MS, _MOST_SKEW_MS)
        self._note(f"the clock of {node.name} is {skew_ms / 1000:.0f} s off")
        node.clock.skew_ms = skew_ms

    # --- ambushes

    def _write_sent(self, writer: str, writes: Sequence[Write]) -> None:
        """A broker is about to write; where that lets a replica into an ISR, its power may be cut at that moment."""
        if not self.ambushes or self._is_over:
            return
        for write in writes:
            if write.value is None or directory_of(write.key) != TOPICS:
                continue
            topic = TopicImage.from_bytes(write.value)
            before = self.watch.topics.get(topic.topic_id)
            if before is None:
                continue
            for former, state in zip(before.partitions, topic.partitions, strict=False):
                for broker_id in state.isr:
                    if broker_id not in former.isr and self.random.random() < 0.1:
                        self.cluster.later(self.random.uniform(0.0, 0.02), partial(self._ambush, broker_id))

    def _ambush(self, broker_id: int) -> None:
        node = self.cluster.node(broker_id)
        if self._is_over or not node.is_serving or broker_id in self._busy:
            return
        if len(self._busy) >= max(2, len(self.cluster.nodes) - 2) or not self._may_go(node):
            return
        if self._may_lose_power(node) and self.random.random() < 0.8:
            self._spawn("ambush", self._occupied(node, self._cut_power))
        else:
            self._spawn("ambush", self._occupied(node, self._kill))


def _is_fine(task: asyncio.Task[None]) -> bool:
    """Whether a fault is over; one that failed is a failure of the run."""
    if not task.done():
        return False
    task.result()
    return True
