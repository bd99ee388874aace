"""Faults that wait for the moment in which they could do the most harm, and strike in some of these moments.

Such a moment lasts for milliseconds, and a fault at a random time hardly ever hits it: a replica is about to join an
ISR, the controller is about to write its decision, a leader is about to hand over, or a record is acknowledged that
some in-sync replicas do not have. Owns when to strike; `faults` owns the faults themselves and how far they may go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from random import Random
from typing import Any

from tailrace.cluster.image import NO_LEADER, PartitionState, TopicImage
from tailrace.cluster.keys import TOPICS
from tailrace.cluster.store import Write
from tailrace.model import TopicPartition
from tailrace.stores.watching import directory_of
from tailrace.testing.cluster.faults import ClusterFaults
from tailrace.testing.cluster.history import ACKS_ALL, Promise
from tailrace.testing.cluster.machines import UNDISTURBED, ClusterNode, Interference
from tailrace.testing.store import LATE, REFUSED, UNANSWERED

#: The kinds of moments, and how often each is used.
_JOINING, _DECIDING, _DELAYED, _THIN = "joining", "deciding", "delayed", "thin"
_HANDING, _LEAVING, _ISR = "handing over", "leaving", "isr"
_CHANCES = {_JOINING: 0.3, _DECIDING: 0.7, _DELAYED: 0.01, _THIN: 0.7, _HANDING: 0.6, _LEAVING: 0.3, _ISR: 0.2}
#: The fate of a change that is struck, and its weight: a change that is applied long after its sender got no answer
#: does the most harm.
_FATES = {LATE: 4, UNANSWERED: 1, REFUSED: 1}
#: The pause between two ambushes of a kind, or a restarting broker would be struck again and again.
_REST_SECONDS = 5.0
#: How long the writer of an unanswered change gets late news.
_LATE_NEWS_SECONDS = 8.0
#: Just long enough to stop a process before it sends anything.
_A_MOMENT_SECONDS = 0.001


class ClusterAmbushes:
    """The ambushes on the brokers of one cluster."""

    def __init__(self, faults: ClusterFaults, random: Random) -> None:
        self._faults = faults
        self._cluster = faults.cluster
        self._watch = faults.watch
        self._random = random
        #: The earliest time of the next ambush of each kind.
        self._not_before: dict[str, float] = {}
        self._cluster.on_write_sent = self._write_sent
        self._watch.on_promise = self._promised

    def _is_ready(self, kind: str) -> bool:
        """True if this moment is used for an ambush."""
        if self._faults.is_over or self._cluster.loop.time() < self._not_before.get(kind, 0.0):
            return False
        return self._random.random() < _CHANCES[kind]

    def _begin(self, kind: str, work: Coroutine[Any, Any, None]) -> None:
        self._not_before[kind] = self._cluster.loop.time() + _REST_SECONDS
        self._faults.spawn("ambush", work)

    # --- before a change of the store is sent

    def _write_sent(self, writer: str, writes: Sequence[Write]) -> Interference:
        """Decide what to do to a change of the store that a broker is about to send."""
        if self._faults.is_over:
            return UNDISTURBED
        joining: dict[int, dict[int, None]] = {}
        is_removal = False
        kinds: dict[str, None] = {}
        for former, state in self._changes(writes):
            kinds.update(dict.fromkeys(_kinds_of(writer, former, state)))
            for broker_id in state.isr:
                if broker_id not in former.isr:
                    joining.setdefault(broker_id, {}).update(dict.fromkeys(former.isr))
            is_removal = is_removal or any(broker_id not in state.isr for broker_id in former.isr)
        for broker_id, in_sync in joining.items():
            if self._is_ready(_JOINING):
                return Interference(self._catch_joining(writer, broker_id, list(in_sync)))
        if is_removal and writer == f"b{self._watch.controller_id}" and self._is_ready(_DECIDING):
            return Interference(self._stop_controller(self._cluster.node(self._watch.controller_id)))
        for kind in kinds:
            if self._is_ready(kind):
                return self._leave_unanswered(writer, kind)
        return UNDISTURBED

    def _leave_unanswered(self, writer: str, kind: str) -> Interference:
        """Let a change that its writer depends on get no answer."""
        self._not_before[kind] = self._cluster.loop.time() + _REST_SECONDS
        (fate,) = self._random.choices(list(_FATES), list(_FATES.values()))
        self._faults.note(f"what {writer} writes ({kind}) is {fate}")
        if fate != REFUSED:
            # A broker that believes in the old state, and learns of the new one late, does the most harm.
            self._cluster.coordination.late_watches[writer] = self._cluster.loop.time() + _LATE_NEWS_SECONDS
        return Interference(fate=fate)

    def _changes(self, writes: Sequence[Write]) -> Iterator[tuple[PartitionState, PartitionState]]:
        """Yield each partition's state in the store and the one that is about to replace it."""
        for write in writes:
            if write.value is None or directory_of(write.key) != TOPICS:
                continue
            topic = TopicImage.from_bytes(write.value)
            before = self._watch.topics.get(topic.lineage)
            if before is not None:
                yield from zip(before.partitions, topic.partitions, strict=False)

    def _catch_joining(self, writer: str, broker_id: int, in_sync: Sequence[int]) -> float:
        """Strike a replica that is about to join an ISR: let it first lose data, or be the only one that follows."""
        node = self._cluster.node(broker_id)
        if self._random.random() < 0.6:
            self._cluster.later(self._random.uniform(0.0, 0.02), lambda: self._strike(node))
            return self._random.uniform(0.4, 2.0) if self._random.random() < 0.8 else 0.0
        held_back = self._random.uniform(0.5, 2.0)
        others = [each for each in in_sync if f"b{each}" != writer]
        self._faults.note(f"{node.name} is let into ISRs late, while {others} do not fetch")
        self._begin(_JOINING, self._stall(others, held_back))
        return held_back

    def _strike(self, node: ClusterNode) -> None:
        if not self._faults.is_over and self._faults.is_idle(node):
            self._begin(_JOINING, self._faults.occupied(node, self._crash))

    async def _crash(self, node: ClusterNode) -> None:
        """Crash a broker and start it again at once, perhaps without being able to fetch what it has lost."""
        faults, network = self._faults, self._cluster.network
        loses = faults.may_lose_power(node)
        faults.note(f"ambush on {node.name}{', which loses its power' if loses else ''}")
        failure = faults.failed("ambush", node.broker_id)
        is_stalled = self._random.random() < 0.7
        if is_stalled:
            network.stall(node.name)
        if loses:
            faults.damage(node)
            node.unplug()
        else:
            node.kill()
        await asyncio.sleep(self._random.uniform(0.01, 0.3))
        node.launch()
        await faults.settle_damage(node)
        await asyncio.sleep(self._random.uniform(0.0, 2.0))
        if is_stalled:
            network.unstall(node.name)
        failure.ended_at = self._cluster.loop.time()

    async def _stall(self, brokers: Sequence[int], seconds: float) -> None:
        names = [self._cluster.node(broker_id).name for broker_id in brokers]
        failure = self._faults.failed("ambush", *brokers)
        for name in names:
            self._cluster.network.stall(name)
        await asyncio.sleep(seconds)
        for name in names:
            self._cluster.network.unstall(name)
        failure.ended_at = self._cluster.loop.time()

    def _stop_controller(self, node: ClusterNode) -> float:
        """Stop the controller between its decision and its write, until another one is elected."""
        if not self._faults.is_idle(node):
            return 0.0
        self._faults.note(f"ambush on {node.name}, which is stopped as it writes what it has decided")
        node.pause()
        self._begin(_DECIDING, self._faults.occupied(node, self._stopped))
        return _A_MOMENT_SECONDS

    async def _stopped(self, node: ClusterNode) -> None:
        failure = self._faults.failed("pause", node.broker_id)
        await asyncio.sleep(self._random.uniform(7.0, 15.0))
        failure.ended_at = self._cluster.loop.time()
        self._faults.note(f"resume {node.name}")
        node.resume()

    # --- after a record is acknowledged

    def _promised(self, promise: Promise, lacking: Sequence[int]) -> None:
        """Delay a replica after a record is acknowledged, and end the leader if that replica lacks the record."""
        if promise.acks == ACKS_ALL:
            return
        leader = self._cluster.node(promise.broker_id)
        if lacking:
            if self._faults.is_idle(leader) and self._is_ready(_THIN):
                go = self._faults.cut_power if self._faults.may_lose_power(leader) else self._faults.kill
                self._begin(_THIN, self._faults.occupied(leader, go))
        elif self._is_ready(_DELAYED):
            state = self._watch.state(promise.partition)
            followers = [each for each in state.isr if each != promise.broker_id] if state is not None else []
            if len(followers) > 1:
                self._begin(_DELAYED, self._delay(promise.partition, self._random.choice(followers)))

    async def _delay(self, partition: TopicPartition, broker_id: int) -> None:
        """Keep a follower from fetching for such a short time that it does not count as failed."""
        name = self._cluster.node(broker_id).name
        self._faults.note(f"{name} is delayed in {partition}")
        self._cluster.network.stall(name)
        await asyncio.sleep(self._random.uniform(0.3, 1.2))
        self._cluster.network.unstall(name)


def _kinds_of(writer: str, former: PartitionState, state: PartitionState) -> Iterator[str]:
    """Yield the kinds of changes that a broker makes to its own part in a partition."""
    if writer == f"b{former.leader}":
        if state.leader not in (former.leader, NO_LEADER):
            yield _HANDING
        elif state.leader == NO_LEADER:
            yield _LEAVING
        elif state.isr != former.isr:
            yield _ISR
    elif any(writer == f"b{each}" for each in former.isr if each not in state.isr):
        yield _LEAVING
