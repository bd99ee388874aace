"""Brokers that crash, stop, are cut off and come back, on a store that loses, delays and repeats, by seed.

Leaders here have no data, and change ISRs at random as far as they may. What must hold is what data would rest on: one
leader in an epoch, epochs that never go back, no crashed broker in an ISR, nothing elected from outside an ISR; and
that all is well again soon after the faults have ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from tailrace.cluster.image import NO_LEADER, ClusterImage, PartitionState, TopicImage
from tailrace.cluster.keys import TOPICS, name_key, topic_key
from tailrace.cluster.metadata import IsrChange
from tailrace.cluster.store import Unavailable
from tailrace.errors import KafkaError
from tailrace.testing.clock import SimClock
from tailrace.testing.loop import SimLoop
from tailrace.testing.store import NASTY, SimCoordination, StoreFaults
from tests.unit.cluster.worlds import Member, broker

BROKERS = (1, 2, 3)
SECONDS = 120.0
SEEDS = int(os.environ.get("TAILRACE_CLUSTER_SEEDS", "25"))


class Cluster:
    """The brokers of one run, and everything that was ever seen of their partitions."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.random: Random = loop.random_for("cluster")
        self.coordination = SimCoordination(loop, loop.random_for("store"), NASTY)
        self.clock = SimClock(loop)
        self.members: dict[int, Member] = {}
        self.marks: dict[int, int | None] = dict.fromkeys(BROKERS)
        #: Who led a partition in an epoch, by everybody's image and by the store.
        self.leaders: dict[tuple[UUID, int, int], int] = {}
        self.states: dict[tuple[UUID, int], PartitionState] = {}
        self.restarts = 0
        self.violations: list[AssertionError] = []
        self.coordination.space.follow(self._stored)

    # --- what is checked all the time

    def _stored(self, changed: object) -> None:
        """Every state of a topic in the store follows from the one before; the run ends where one does not."""
        try:
            self._check_stored()
        except AssertionError as error:
            self.violations.append(error)

    def _check_stored(self) -> None:
        for entry in self.coordination.space.list(TOPICS):
            topic = TopicImage.from_bytes(entry.value)
            for number, state in enumerate(topic.partitions):
                before = self.states.get((topic.lineage, number), state)
                self.states[topic.lineage, number] = state
                assert state.leader == NO_LEADER or state.leader in state.isr, (topic.name, state)
                assert state.leader_epoch >= before.leader_epoch
                if state.leader != before.leader:
                    assert state.leader_epoch > before.leader_epoch
                    assert state.leader in (*before.isr, NO_LEADER), "only who was in sync is elected"
                self._led(topic, number, state)

    def _led(self, topic: TopicImage, number: int, state: PartitionState) -> None:
        if state.leader != NO_LEADER:
            leader = self.leaders.setdefault((topic.lineage, number, state.leader_epoch), state.leader)
            assert leader == state.leader, f"two leaders in one epoch of {topic.name}-{number}"

    def _seen(self, member: Member, before: ClusterImage) -> None:
        """A broker never sees an epoch go back."""
        for lineage, topic in member.metadata.image.topics_by_lineage.items():
            known = before.topics_by_lineage.get(lineage)
            for number, state in enumerate(topic.partitions):
                self._led(topic, number, state)
                if known is not None and number < len(known.partitions):
                    assert state.leader_epoch >= known.partitions[number].leader_epoch

    # --- what happens

    async def start(self, broker_id: int) -> None:
        """Start a broker, again if it cannot reach the store."""
        while broker_id not in self.members:
            member = Member(self.coordination.store(f"b{broker_id}"), self.clock, broker_id)
            self.restarts += 1

            async def changed(before: ClusterImage, member: Member = member) -> None:
                self._seen(member, before)

            member.metadata.on_change = changed
            try:
                await member.metadata.load("cluster")
                mark, there = self.marks[broker_id], list(self.states)
                await member.registration.claim([f"directory {broker_id}"], mark)
                if mark is None:
                    self._check_departed(broker_id, there)
                self.marks[broker_id] = None
                await member.metadata.start()
                await member.registration.register(broker(broker_id))
                await member.controller.start()
            except Unavailable:
                member.tasks.abandon()
                self.coordination.crash(f"b{broker_id}")
                await asyncio.sleep(self.random.uniform(0.1, 2))
                continue
            self.members[broker_id] = member

    def _check_departed(self, broker_id: int, there: Sequence[tuple[UUID, int]]) -> None:
        """In what is made meanwhile it may be in sync: nothing can be committed there without it."""
        for entry in self.coordination.space.list(TOPICS):
            topic = TopicImage.from_bytes(entry.value)
            for number, state in enumerate(topic.partitions):
                if (topic.lineage, number) in there:
                    is_alone = state.isr == (broker_id,)
                    assert broker_id not in state.isr or is_alone, "a crashed broker is in sync with others"

    def crash(self, broker_id: int) -> None:
        member = self.members.pop(broker_id)
        assert member.failures == []
        member.tasks.abandon()
        self.coordination.crash(f"b{broker_id}")

    async def stop(self, broker_id: int) -> None:
        member = self.members.pop(broker_id)
        assert member.failures == []
        self.marks[broker_id] = await member.stop()
        self.coordination.crash(f"b{broker_id}", seen_at_once=True)

    async def lead(self, broker_id: int) -> None:
        """Change an ISR as a leader may, or make or alter a topic as any broker may."""
        member = self.members[broker_id]
        image = member.metadata.image
        try:
            if self.random.random() < 0.1:
                await self._administrate(member)
                return
            changes = []
            for topic in image.topics.values():
                for number, state in enumerate(topic.partitions):
                    if state.leader == broker_id and self.random.random() < 0.4:
                        changes.append(self._isr_change(image, topic, number, state))
            await member.metadata.alter_isr(changes)
        except (Unavailable, KafkaError):
            pass

    def _isr_change(self, image: ClusterImage, topic: TopicImage, number: int, state: PartitionState) -> IsrChange:
        wanted = [
            each
            for each in state.replicas
            if each == state.leader or (each in image.brokers and self.random.random() < 0.7)
        ]
        added = {each: image.brokers[each].epoch for each in wanted if each not in state.isr}
        return IsrChange(topic.lineage, number, state.leader_epoch, tuple(wanted), added)

    async def make_first_topic(self) -> None:
        """Have one topic that is never deleted, however long the store takes."""
        metadata = self.members[BROKERS[0]].metadata
        while "t0" not in metadata.image.topics:
            try:
                await metadata.create_topic(metadata.plan_topic("t0", 3, len(metadata.image.brokers), {}, {}))
            except KafkaError:
                await asyncio.sleep(1)

    async def _administrate(self, member: Member) -> None:
        metadata = member.metadata
        topics = metadata.image.topics
        name = f"t{self.random.randrange(8)}"
        if name not in topics:
            replicas = min(3, len(metadata.image.brokers))
            await metadata.create_topic(metadata.plan_topic(name, 3, replicas, {}, {}))
        elif self.random.random() < 0.2 and name != "t0":
            await metadata.delete_topic(topics[name])
        else:
            await metadata.alter_topic(
                topics[name], lambda topic: metadata.plan_partitions(topic, len(topic.partitions) + 1, None)
            )


async def scenario(cluster: Cluster) -> None:
    random, coordination = cluster.random, cluster.coordination
    for broker_id in BROKERS:
        await cluster.start(broker_id)
    await cluster.make_first_topic()
    busy: dict[int, asyncio.Task[None]] = {}
    until = cluster.loop.time() + SECONDS
    while cluster.loop.time() < until:
        await asyncio.sleep(random.uniform(0.05, 1.5))
        assert cluster.violations == []
        broker_id = random.choice(BROKERS)
        name = f"b{broker_id}"
        if broker_id in busy and not busy[broker_id].done():
            continue
        drawn = random.random()
        if broker_id not in cluster.members:
            if random.random() < 0.7:
                coordination.heal(name)
            busy[broker_id] = asyncio.ensure_future(cluster.start(broker_id))
        elif drawn < 0.06:
            cluster.crash(broker_id)
        elif drawn < 0.10:
            busy[broker_id] = asyncio.ensure_future(cluster.stop(broker_id))
        elif drawn < 0.14:
            coordination.cut(name)
        elif drawn < 0.30:
            coordination.heal(name)
        else:
            busy[broker_id] = asyncio.ensure_future(cluster.lead(broker_id))
    coordination.heal()
    coordination.faults = StoreFaults(slow=0.0)
    for broker_id in BROKERS:
        if broker_id in busy:
            await busy[broker_id]
        await cluster.start(broker_id)
    await asyncio.sleep(60)
    check_well(cluster)


def check_well(cluster: Cluster) -> None:
    """Once all are back: one controller, every partition led by a broker in sync, and everybody knows it."""
    stored = {
        topic.name: topic
        for entry in cluster.coordination.space.list(TOPICS)
        for topic in [TopicImage.from_bytes(entry.value)]
    }
    assert stored, "the run made no topic"
    assert cluster.violations == []
    active = [member.broker_id for member in cluster.members.values() if member.controller.is_active]
    assert len(active) == 1
    for topic in stored.values():
        for state in topic.partitions:
            assert state.leader in BROKERS, (topic.name, state)
    for member in cluster.members.values():
        assert member.failures == []
        assert member.metadata.image.topics == stored
        assert list(member.metadata.image.brokers) == list(BROKERS)
        assert member.metadata.image.controller_id == active[0]
        assert member.registration.is_registered
    names = {entry.key for entry in cluster.coordination.space.list("/topic-names")}
    assert names == {name_key(name) for name in stored}
    assert {topic_key(topic.lineage) for topic in stored.values()} == {
        entry.key for entry in cluster.coordination.space.list(TOPICS)
    }


def simulate(seed: int | str) -> Cluster:
    loop = SimLoop(seed)
    cluster = Cluster(loop)
    try:
        loop.run(scenario(cluster))
    except BaseException as error:
        error.add_note(f"seed {seed} at {loop.time():.3f} s, faults {cluster.coordination.injected}")
        raise
    return cluster


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_there_is_one_leader_in_an_epoch_and_all_is_well_afterwards(seed: int) -> None:
    cluster = simulate(seed)
    assert cluster.restarts > len(BROKERS)
    assert sum(cluster.coordination.injected.values()) >= 10


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [simulate("again") for _ in range(2)]
    assert runs[0].coordination.trace.digest == runs[1].coordination.trace.digest
    assert runs[0].states == runs[1].states
