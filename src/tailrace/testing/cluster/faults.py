"""The faults of a simulated cluster, by seed: each fault starts, lasts for a while, and is healed.

Owns which faults are in progress, and how far they may go: power never fails where that would lose what was promised,
that is, where no other in-sync replica of a partition is intact and running. The history records every fault with the
brokers that it hit, for promises that only survive a number of failures. Here the start of a fault is random;
`ambushes` has those that wait for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from tailrace.cluster.image import NO_LEADER
from tailrace.model import TopicPartition
from tailrace.testing.cluster.history import STOP, STORE_AWAY, ClusterHistory, Failure
from tailrace.testing.cluster.machines import USUAL_STORE_FAULTS, ClusterNode, SimCluster
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.store import NASTY

#: A fault of one broker.
OnNode: TypeAlias = Callable[[ClusterNode], Coroutine[Any, Any, None]]
#: Starts a fault, if that is possible now.
BeginFault: TypeAlias = Callable[[], Coroutine[Any, Any, None] | None]

_MOST_SKEW_MS = 20 * 60_000
#: The weight of each kind.
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
    "deposed": 8,
}
#: How long each step of a fault with several may take, before it continues without.
_STEP_SECONDS = 12.0
#: A favoured kind is chosen this many times as often as all others together.
_FAVOUR = 4
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class ClusterFaults:
    """All faults of one cluster."""

    cluster: SimCluster
    history: ClusterHistory
    watch: ClusterWatch
    random: Random
    clients: Sequence[str]
    #: The number of faults of each kind so far.
    injected: dict[str, int] = field(default_factory=dict)
    is_over: bool = False
    #: A kind of fault to inject far more often than the others.
    favoured: str | None = None
    most_skew_ms: int = _MOST_SKEW_MS
    #: Further kinds of faults, and their weights.
    further: dict[str, BeginFault] = field(default_factory=dict)
    further_weights: dict[str, int] = field(default_factory=dict)
    _under_way: list[asyncio.Task[None]] = field(default_factory=list)
    #: Brokers with a fault in progress, so that no two faults start and stop one process.
    _busy: dict[int, None] = field(default_factory=dict)
    #: Brokers that lost unsynced data and may still be in an ISR for it, with the epoch of each state.
    _damaged: dict[int, None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.injected.values())

    async def run(self, until: float, at_least: int) -> None:
        """Inject faults until a time, and until there were enough of them."""
        while self.cluster.loop.time() < until or self.count < at_least:
            await asyncio.sleep(self.random.expovariate(1 / 6.0) + 0.5)
            weights = self._weights()
            self._begin(self.random.choices(list(weights), list(weights.values()))[0])
            self._under_way = [task for task in self._under_way if not _is_fine(task)]
        self.is_over = True

    def _weights(self) -> dict[str, int]:
        weights = _WEIGHTS | self.further_weights
        if self.favoured is not None:
            if self.favoured not in weights:
                raise ValueError(f"unknown fault {self.favoured!r}; the faults are: {', '.join(weights)}")
            weights[self.favoured] = _FAVOUR * sum(weights.values())
        return weights

    async def heal(self) -> None:
        """Wait for the end of every fault, and make sure that every broker runs."""
        self.is_over = True
        for task in self._under_way:
            await task
        self.cluster.network.heal()
        self.cluster.coordination.heal()
        self.cluster.coordination.faults = USUAL_STORE_FAULTS
        self.cluster.network.slowness.clear()
        for node in self.cluster.nodes:
            node.launch()

    # --- starting faults

    def _begin(self, kind: str) -> None:
        fault = (self._faults() | self.further).get(kind)
        work = None if fault is None else fault()
        if work is None:
            return  # not possible now
        self.spawn(kind, work)

    def spawn(self, kind: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a fault beside the others."""
        self.injected[kind] = self.injected.get(kind, 0) + 1
        self._under_way.append(self.cluster.loop.create_task(work, context=self.cluster.network.context.copy()))

    def _faults(self) -> dict[str, BeginFault]:
        return {
            "kill": lambda: self.on_idle(self.kill),
            "power cut": lambda: self.on_idle(self.cut_power, self.may_lose_power),
            "empty disk": lambda: self.on_idle(self._wipe, self.may_lose_power),
            "stop": lambda: self.on_idle(self._stop),
            "kill all": self._kill_all,
            "pause": lambda: self.on_idle(self._pause),
            "isolate": lambda: self.on_any(self._isolate),
            "link": self._cut_link,
            "one way": self._cut_one_way,
            "slow": lambda: self.on_any(self._slow_down),
            "not fetching": lambda: self.on_any(self._stall),
            "store cut": lambda: self.on_any(self._cut_from_store),
            "store away": self._store_away,
            "store nasty": self._store_nasty,
            "clock": lambda: self.on_any(self._set_clock),
            "resets": self._reset_connections,
            "bounce": lambda: self.on_idle(self._bounce),
            "join": self._join,
            "deposed": self._depose,
        }

    def on_idle(
        self,
        fault: OnNode,
        may: Callable[[ClusterNode], bool] = lambda node: True,
    ) -> Coroutine[Any, Any, None] | None:
        """Start a fault of the process of a broker without such a fault."""
        idle = [node for node in self.cluster.nodes if self.is_idle(node) and may(node)]
        return self.occupied(self.random.choice(idle), fault) if idle else None

    def is_idle(self, node: ClusterNode) -> bool:
        """True if the process of a broker may get a fault now."""
        # A minimum must run: of three brokers at least one always does, except for the moment in which all are killed.
        are_enough = len(self._busy) < max(2, len(self.cluster.nodes) - 2)
        return are_enough and node.is_serving and node.broker_id not in self._busy and self.may_go(node)

    def on_any(self, fault: OnNode) -> Coroutine[Any, Any, None] | None:
        return fault(self.random.choice(self.cluster.nodes))

    def occupied(self, node: ClusterNode, fault: OnNode) -> Coroutine[Any, Any, None]:
        """Start a fault of a broker's process, and allow no other one until it is over."""
        self._busy[node.broker_id] = None
        return self._occupied(node, fault)

    async def _occupied(self, node: ClusterNode, fault: OnNode) -> None:
        try:
            await fault(node)
        finally:
            del self._busy[node.broker_id]

    def duration(self) -> float:
        """Return a duration: mostly longer or shorter than a session, sometimes a moment."""
        return self.random.choice([self.random.uniform(0.05, 1.0), self.random.uniform(1.0, 14.0)])

    def note(self, what: str) -> None:
        """Note a fault."""
        self.cluster.note(f"FAULT {what}")

    def failed(self, kind: str, *brokers: int, is_of_either: bool = False) -> Failure:
        """Record the start of a failure of brokers."""
        return self.history.failed(kind, brokers, is_of_either=is_of_either)

    async def lasts(self, failure: Failure, seconds: float | None = None) -> None:
        await asyncio.sleep(self.duration() if seconds is None else seconds)
        failure.ended_at = self.cluster.loop.time()

    # --- limits

    def _states(self) -> list[tuple[int, ...]]:
        return [
            state.isr
            for topic in self.watch.topics.values()
            if self.watch.names[topic.lineage] not in self.history.unclean_topics
            for state in topic.partitions
        ]

    def may_lose_power(self, node: ClusterNode) -> bool:
        """True if another broker has intact copies of all partitions with which this one is in sync."""
        return not self._damaged and self.is_whole_elsewhere(node)

    def is_whole_elsewhere(self, node: ClusterNode) -> bool:
        """True if nothing would be lost with this broker, as far as it counts as in sync."""
        return all(
            any(self._is_whole(broker_id) for broker_id in isr if broker_id != node.broker_id)
            for isr in self._states()
            if node.broker_id in isr
        )

    def _is_whole(self, broker_id: int) -> bool:
        node = self.cluster.node(broker_id)
        return node.is_serving and broker_id not in self._damaged and broker_id not in self._busy

    def may_go(self, node: ClusterNode) -> bool:
        """True if the process may end although another broker still counts as in sync with data that it has lost."""
        return not any(
            node.broker_id in isr and any(broker_id in self._damaged for broker_id in isr) for isr in self._states()
        )

    def damage(self, node: ClusterNode) -> None:
        """Note that a broker is about to lose data."""
        self._damaged[node.broker_id] = None

    async def settle_damage(self, node: ClusterNode) -> None:
        """Wait until a broker that lost data no longer counts for it."""
        await node.wait_until_serving()
        self._damaged.pop(node.broker_id, None)

    # --- processes

    async def kill(self, node: ClusterNode) -> None:
        """End a process, and start it again after a while."""
        self.note(f"kill {node.name}")
        failure = self.failed("kill", node.broker_id)
        node.kill()
        await asyncio.sleep(self.duration())
        node.launch()
        await node.wait_until_serving()
        failure.ended_at = self.cluster.loop.time()

    async def cut_power(self, node: ClusterNode) -> None:
        """End a process and lose its unsynced data."""
        self.note(f"power cut at {node.name}")
        await self._lose(node, node.unplug)

    async def _wipe(self, node: ClusterNode) -> None:
        self.note(f"{node.name} is replaced by a machine with an empty disk")
        await self._lose(node, node.wipe)

    async def _lose(self, node: ClusterNode, how: Callable[[], None]) -> None:
        self.damage(node)
        failure = self.failed("power", node.broker_id)
        how()
        await asyncio.sleep(self.duration())
        node.launch()
        await self.settle_damage(node)
        failure.ended_at = self.cluster.loop.time()

    async def _stop(self, node: ClusterNode) -> None:
        self.note(f"stop {node.name}")
        failure = self.failed(STOP, node.broker_id)
        await node.stop()
        await asyncio.sleep(self.duration())
        node.launch()
        await node.wait_until_serving()
        failure.ended_at = self.cluster.loop.time()

    async def _bounce(self, node: ClusterNode) -> None:
        """Kill a broker again while it starts."""
        self.note(f"bounce {node.name}")
        failure = self.failed("bounce", node.broker_id)
        for _ in range(self.random.randint(2, 4)):
            node.kill()
            await asyncio.sleep(self.random.uniform(0.01, 0.5))
            node.launch()
            await asyncio.sleep(self.random.uniform(0.01, 2.0))
        node.launch()
        await node.wait_until_serving()
        failure.ended_at = self.cluster.loop.time()

    def _join(self) -> Coroutine[Any, Any, None] | None:
        """Start a new broker."""
        new = [node for node in self.cluster.nodes if not node.launches]
        return self._joined(new[0]) if new else None

    async def _joined(self, node: ClusterNode) -> None:
        self.note(f"{node.name} joins")
        node.launch()
        await node.wait_until_serving()

    def _kill_all(self) -> Coroutine[Any, Any, None] | None:
        return self.on_all("kill all", ClusterNode.kill)

    def on_all(self, kind: str, end: Callable[[ClusterNode], None]) -> Coroutine[Any, Any, None] | None:
        """End the processes of all brokers at once, and start them in some order."""
        if self._busy or self._damaged:
            return None
        return self._all_ended(kind, end)

    async def _all_ended(self, kind: str, end: Callable[[ClusterNode], None]) -> None:
        self.note(kind)
        nodes = [node for node in self.cluster.nodes if node.launches]
        failure = self.failed(kind, *[node.broker_id for node in nodes])
        self._busy.update(dict.fromkeys(node.broker_id for node in nodes))
        for node in nodes:
            end(node)
        order = self.random.sample(nodes, len(nodes))
        for node in order:
            await asyncio.sleep(self.random.uniform(0.0, 4.0))
            node.launch()
        for node in order:
            await node.wait_until_serving()
            del self._busy[node.broker_id]
        failure.ended_at = self.cluster.loop.time()

    async def _pause(self, node: ClusterNode) -> None:
        self.note(f"pause {node.name}")
        failure = self.failed("pause", node.broker_id)
        node.pause()
        await self.lasts(failure)
        self.note(f"resume {node.name}")
        node.resume()

    # --- the network

    async def _isolate(self, node: ClusterNode) -> None:
        """Cut a broker off from the others, and from some clients."""
        others = [other.name for other in self.cluster.nodes if other is not node]
        others += [client for client in self.clients if self.random.random() < 0.3]
        self.note(f"isolate {node.name} from {' '.join(others)}")
        failure = self.failed("isolate", node.broker_id)
        for other in others:
            self.cluster.network.cut(node.name, other)
        with_store = self.random.random() < 0.3
        if with_store:
            self.cluster.coordination.cut(node.name)
        await self.lasts(failure)
        for other in others:
            self.cluster.network.heal(node.name, other)
        if with_store:
            self.cluster.coordination.heal(node.name)
        self.note(f"{node.name} is isolated no more")

    async def _cut_link(self) -> None:
        one, other = self.random.sample(self.cluster.nodes, 2)
        self.note(f"cut {one.name} - {other.name}")
        failure = self.failed("link", one.broker_id, other.broker_id, is_of_either=True)
        self.cluster.network.cut(one.name, other.name)
        await self.lasts(failure)
        self.cluster.network.heal(one.name, other.name)

    async def _cut_one_way(self) -> None:
        """Lose what one broker sends to another one or to all; it still receives."""
        one, other = self.random.sample(self.cluster.nodes, 2)
        to_all = self.random.random() < 0.5
        targets = [node for node in self.cluster.nodes if node is not one] if to_all else [other]
        self.note(f"cut {one.name} > {' '.join(node.name for node in targets)}")
        if to_all:
            failure = self.failed("one way", one.broker_id)
        else:
            failure = self.failed("one way", one.broker_id, other.broker_id, is_of_either=True)
        for target in targets:
            self.cluster.network.cut(one.name, target.name, one_way=True)
        await self.lasts(failure)
        for target in targets:
            self.cluster.network.heal(one.name, target.name)

    async def _slow_down(self, node: ClusterNode) -> None:
        """Slow down a broker's connections so much that they overtake each other by far."""
        factor = self.random.choice([10.0, 100.0, 400.0])
        self.note(f"{node.name} is {factor:.0f} times slower")
        failure = self.failed("slow", node.broker_id)
        self.cluster.network.slowness[node.name] = factor
        await self.lasts(failure)
        self.cluster.network.slowness.pop(node.name, None)

    async def _stall(self, node: ClusterNode) -> None:
        self.note(f"{node.name} does not fetch")
        failure = self.failed("not fetching", node.broker_id)
        self.cluster.network.stall(node.name)
        await self.lasts(failure)
        self.cluster.network.unstall(node.name)

    async def _reset_connections(self) -> None:
        self.note("resets")
        names = [node.name for node in self.cluster.nodes] + list(self.clients)
        for _ in range(self.random.randint(1, 8)):
            self.cluster.network.reset(*self.random.sample(names, 2))
            await asyncio.sleep(self.random.uniform(0.0, 0.5))

    # --- the store and the clocks

    async def _cut_from_store(self, node: ClusterNode) -> None:
        self.note(f"cut {node.name} from the store")
        failure = self.failed("store cut", node.broker_id)
        self.cluster.coordination.cut(node.name)
        await self.lasts(failure)
        self.cluster.coordination.heal(node.name)

    async def _store_away(self) -> None:
        self.note("the store is away")
        names = [node.name for node in self.cluster.nodes]
        failure = self.failed(STORE_AWAY, *[node.broker_id for node in self.cluster.nodes])
        self.cluster.coordination.cut(*names)
        await self.lasts(failure)
        self.cluster.coordination.heal(*names)

    async def _store_nasty(self) -> None:
        self.note("the store is nasty")
        self.cluster.coordination.faults = NASTY
        await asyncio.sleep(self.random.uniform(2.0, 15.0))
        self.cluster.coordination.faults = USUAL_STORE_FAULTS

    async def _set_clock(self, node: ClusterNode) -> None:
        skew_ms = self.random.randint(-self.most_skew_ms, self.most_skew_ms)
        self.note(f"the clock of {node.name} is {skew_ms / 1000:.0f} s off")
        node.clock.skew_ms = skew_ms

    # --- deposed leaders

    def _depose(self) -> Coroutine[Any, Any, None] | None:
        """Choose a partition whose leader to depose."""
        led = [
            (TopicPartition(self.watch.names[topic.lineage], number), self.cluster.node(state.leader))
            for topic in self.watch.topics.values()
            for number, state in enumerate(topic.partitions)
            if state.leader == state.replicas[0] and len(state.isr) > 1
        ]
        led = [(partition, node) for partition, node in led if self.is_idle(node)]
        if not led:
            return None
        # Mostly the busiest ones: there clients have requests in progress.
        weights = [self.history.committed_end(partition) + 1 for partition, _ in led]
        ((partition, node),) = self.random.choices(led, weights)
        return self.occupied(node, lambda node: self._deposed(node, partition))

    async def _deposed(self, node: ClusterNode, partition: TopicPartition) -> None:
        """Let only clients reach a leader until another one is elected, and then let it lead again, perhaps at once.

        Clients that retry meanwhile reach the other leader, unless they are cut off until the first one leads again.
        """
        network, others = self.cluster.network, [other.name for other in self.cluster.nodes if other is not node]
        self.note(f"{node.name}, which leads {partition}, is left alone with its clients")
        failure = self.failed("deposed", node.broker_id)
        for other in others:
            network.cut(node.name, other)
        self.cluster.coordination.cut(node.name)
        await self.until(lambda: self._leader_of(partition) not in (node.broker_id, NO_LEADER))
        away = [client for client in self.clients if client.startswith("p")] if self.random.random() < 0.75 else []
        self.note(f"{node.name} is back{', while producers are cut off' if away else ''}")
        for client in away:
            for each in self.cluster.nodes:
                network.cut(client, each.name)
        for other in others:
            network.heal(node.name, other)
        self.cluster.coordination.heal(node.name)
        if away:
            await self.until(lambda: node.broker_id in self._isr_of(partition))
            if node.broker_id in self._isr_of(partition):
                await self._follow(partition, node)
            for client in away:
                network.heal(client)
        failure.ended_at = self.cluster.loop.time()

    async def _follow(self, partition: TopicPartition, heir: ClusterNode) -> None:
        """End the leader of a partition, so that another one succeeds it."""
        leader = self._leader_of(partition)
        if leader in (heir.broker_id, NO_LEADER) or not self.is_idle(self.cluster.node(leader)):
            return
        go = self.kill if self.random.random() < 0.25 else self._stop
        self.spawn("succession", self.occupied(self.cluster.node(leader), go))
        await self.until(lambda: self._leader_of(partition) not in (leader, NO_LEADER))

    async def until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(round(_STEP_SECONDS / _LOOK_SECONDS)):
            if is_so():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _leader_of(self, partition: TopicPartition) -> int:
        state = self.watch.state(partition)
        return NO_LEADER if state is None else state.leader

    def _isr_of(self, partition: TopicPartition) -> tuple[int, ...]:
        state = self.watch.state(partition)
        return () if state is None else state.isr


def _is_fine(task: asyncio.Task[None]) -> bool:
    """True if a fault is over; if it raised an error, that fails the run."""
    if not task.done():
        return False
    task.result()
    return True
