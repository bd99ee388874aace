"""Faults of the machines of a simulated cluster: disks, power failures everywhere, suspension, stranded replicas.

Owns these faults and when each may happen; `faults` owns how far any of them may go. An operator eventually repairs or
replaces a disk that fails or rots. Power fails everywhere at once only if everything acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tailrace.cluster.image import NO_LEADER
from tailrace.model import TopicPartition
from tailrace.storage.segment import LOG_SUFFIX
from tailrace.testing.cluster.faults import ClusterFaults
from tailrace.testing.cluster.history import UNCLEAN, Violation
from tailrace.testing.cluster.machines import ClusterNode
from tailrace.testing.disk import ANY_OPERATION

#: Power fails everywhere at once.
BLACKOUT = "blackout"
#: The weight of each kind, beside those of `faults`.
_WEIGHTS = {"disk fails": 3, "disk full": 3, "disk hangs": 3, "disk rots": 8, "suspend": 8, "stranded": 15}
#: It requires that all brokers run, which is rare.
_BLACKOUT_WEIGHT = 25
#: The operations that a failing disk refuses.
_FAILING = ("append", "sync", "replace_file", ANY_OPERATION)
#: How long it takes until a rotten disk is noticed.
_FOUND_OUT_SECONDS = 6.0
_ASLEEP_SECONDS = (8.0, 14.0)
_RECONNECT_SECONDS = 4.0
_HANGING_SECONDS = (2.0, 9.0)
#: Real clocks drift by a few hundred parts per million.
MOST_DRIFT = 0.0005
#: The time without any live in-sync replica after which another replica leads, where that is allowed.
_UNCLEAN_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class ClusterDisasters:
    """Adds these faults to those of one cluster."""

    def __init__(
        self,
        faults: ClusterFaults,
        random: Random,
        *,
        survives_blackout: bool,
        read_again: Callable[[str], None] = lambda directory: None,
    ) -> None:
        self._faults = faults
        self._cluster = faults.cluster
        self._watch = faults.watch
        self._history = faults.history
        self._random = random
        #: Makes consumers read a partition, given as the name of its directory, from the start.
        self._read_again = read_again
        faults.further = {
            "disk fails": lambda: faults.on_idle(self._fail_disk, faults.may_lose_power),
            "disk full": lambda: faults.on_any(self._fill_disk),
            "disk hangs": lambda: faults.on_any(self._hang_disk),
            "disk rots": lambda: faults.on_idle(self._rot, faults.may_lose_power),
            "suspend": lambda: faults.on_idle(self._suspend),
            "stranded": self._strand,
            BLACKOUT: lambda: faults.on_all(BLACKOUT, ClusterNode.unplug),
        }
        faults.further_weights = dict(_WEIGHTS)
        if survives_blackout:
            faults.further_weights[BLACKOUT] = _BLACKOUT_WEIGHT
        for node in self._cluster.nodes:
            node.clock.rate = 1.0 + random.uniform(-MOST_DRIFT, MOST_DRIFT)

    # --- disks

    async def _fail_disk(self, node: ClusterNode) -> None:
        """Let a disk refuse an operation until it is repaired; then it has lost unsynced data, if others have that."""
        operation = self._random.choice(_FAILING)
        self._faults.note(f"the disk of {node.name} fails: {operation}")
        failure = self._faults.failed("disk", node.broker_id)
        self._faults.damage(node)
        self._watch.unreadable[node.name] = None
        fault = node.disk.fail(lambda path: path.startswith("/data"), operation, times=None)
        await asyncio.sleep(self._faults.duration())
        fault.lift()
        self._faults.note(f"the disk of {node.name} is repaired")
        # Meanwhile replicas cannot copy from it, so data that only it has cannot be elsewhere.
        await self._start_again(node, node.unplug if self._faults.is_whole_elsewhere(node) else node.kill)
        self._watch.unreadable.pop(node.name, None)
        failure.ended_at = self._cluster.loop.time()

    async def _start_again(self, node: ClusterNode, end: Callable[[], None]) -> None:
        end()
        await asyncio.sleep(self._random.uniform(0.1, 2.0))
        node.launch()
        await self._faults.settle_damage(node)

    async def _fill_disk(self, node: ClusterNode) -> None:
        disk = node.disk
        self._faults.note(f"the disk of {node.name} is full")
        failure = self._faults.failed("disk", node.broker_id)
        disk.capacity_bytes = disk.used_bytes + self._random.choice([0, 100, 5000])
        await self._faults.lasts(failure)
        disk.capacity_bytes = None
        self._faults.note(f"the disk of {node.name} has room again")

    async def _hang_disk(self, node: ClusterNode) -> None:
        disk = node.disk
        usual = disk.latency_seconds
        self._faults.note(f"the disk of {node.name} hangs")
        failure = self._faults.failed("disk", node.broker_id)
        disk.latency_seconds = _HANGING_SECONDS
        await self._faults.lasts(failure)
        disk.latency_seconds = usual

    async def _rot(self, node: ClusterNode) -> None:
        """Let a disk lose a byte; an operator replaces it after a while."""
        led = tuple(
            f"/data/{topic.name}-{number}/"
            for topic in self._watch.topics.values()
            for number, state in enumerate(topic.partitions)
            if state.leader == node.broker_id
        )
        broker = node.broker
        active = [replica.log.segments.active.log.path for replica in broker.partitions] if broker is not None else []

        def is_closed(path: str) -> bool:
            return path.endswith(LOG_SUFFIX) and path not in active

        # Mostly data that others read from here. Recent data is in the page cache.
        path = node.disk.rot(lambda path: is_closed(path) and path.startswith(led)) if led else None
        path = path or node.disk.rot(is_closed)
        if path is None:
            return
        self._faults.note(f"the disk of {node.name} has lost a byte of {path}")
        failure = self._faults.failed("disk", node.broker_id)
        self._watch.unreadable[node.name] = None
        self._faults.damage(node)
        self._history.rotten[node.broker_id] = None
        self._read_again(path.split("/")[2])
        await asyncio.sleep(_FOUND_OUT_SECONDS + self._faults.duration())
        self._faults.note(f"the disk of {node.name} is replaced")
        # It may have become the only in-sync replica since its disk began to rot.
        while not self._faults.is_whole_elsewhere(node):  # noqa: ASYNC110  there is no event
            await asyncio.sleep(_LOOK_SECONDS)
        await self._start_again(node, node.wipe)
        self._watch.unreadable.pop(node.name, None)
        self._history.rotten.pop(node.broker_id, None)
        failure.ended_at = self._cluster.loop.time()

    # --- machines

    async def _suspend(self, node: ClusterNode) -> None:
        """Suspend a machine: when it wakes up, its clock has moved on, and its timers have not."""
        self._faults.note(f"suspend {node.name}")
        failure = self._faults.failed("pause", node.broker_id)
        # A broker whose clients know no other one when it wakes up does the most harm.
        clients = [each for each in self._faults.clients if each.startswith("p") and self._random.random() < 0.5]
        others = [each.name for each in self._cluster.nodes if each is not node]
        for client in clients:
            for other in others:
                self._cluster.network.cut(client, other)
        node.pause()
        began = self._cluster.loop.time()
        # Mostly long enough for others to lead.
        is_long = self._random.random() < 0.7
        await self._faults.lasts(failure, self._random.uniform(*_ASLEEP_SECONDS) if is_long else None)
        self._faults.note(f"{node.name} wakes up")
        # The store has closed its connection, and it takes a while to connect again.
        coordination = self._cluster.coordination
        was_cut = coordination.is_cut(node.name)
        coordination.cut(node.name)
        node.wake(self._cluster.loop.time() - began)
        await asyncio.sleep(self._random.uniform(0.0, _RECONNECT_SECONDS))
        if not was_cut:
            coordination.heal(node.name)
        for client in clients:
            self._cluster.network.heal(client)

    # --- stranded replicas

    def _strand(self) -> Coroutine[Any, Any, None] | None:
        """Choose a partition that allows unclean elections, and a follower that will be its only live replica."""
        for topic in self._watch.topics.values():
            name = self._watch.names[topic.lineage]
            if name not in self._history.unclean_topics:
                continue
            partition, state = TopicPartition(name, 0), topic.partitions[0]
            followers = [each for each in state.replicas if each != state.leader]
            left = self._cluster.node(self._random.choice(followers))
            others = [self._cluster.node(each) for each in state.replicas if each != left.broker_id]
            if left.is_serving and all(self._faults.is_idle(node) for node in others):
                return self._stranded(partition, left, others)
        return None

    async def _stranded(self, partition: TopicPartition, left: ClusterNode, others: list[ClusterNode]) -> None:
        """Let a replica fall behind, end all others, and wait until it leads before they are back."""
        faults = self._faults
        faults.note(f"{left.name} is left behind in {partition}")
        failure = faults.failed("stranded", *[node.broker_id for node in (left, *others)])
        self._cluster.network.stall(left.name)
        await faults.until(lambda: left.broker_id not in self._isr_of(partition))
        may_go = left.broker_id not in self._isr_of(partition) and all(faults.is_idle(node) for node in others)
        ends = [faults.occupied(node, self._ended_until(partition, left)) for node in others if may_go]
        tasks = [asyncio.ensure_future(end) for end in ends]
        await asyncio.sleep(0)
        self._cluster.network.unstall(left.name)
        for task in tasks:
            await task
        failure.ended_at = self._cluster.loop.time()

    def _ended_until(self, partition: TopicPartition, left: ClusterNode) -> Any:
        async def ended(node: ClusterNode) -> None:
            node.kill()
            deadline = self._cluster.loop.time() + _UNCLEAN_SECONDS
            while left.is_serving and not left.is_paused and self._leader_of(partition) != left.broker_id:
                if self._cluster.coordination.is_cut(left.name):
                    break
                if self._cluster.loop.time() > deadline:
                    raise Violation(UNCLEAN, f"{partition}: {left.name} is the only live replica")
                await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(self._random.uniform(0.0, 3.0))
            node.launch()
            await node.wait_until_serving()

        return ended

    def _leader_of(self, partition: TopicPartition) -> int:
        state = self._watch.state(partition)
        return NO_LEADER if state is None else state.leader

    def _isr_of(self, partition: TopicPartition) -> tuple[int, ...]:
        state = self._watch.state(partition)
        return () if state is None else state.isr
