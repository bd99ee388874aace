"""Brokers without partitions on one store in memory: metadata, registration and controller of each, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.leading.controller import AskLogEnds, Controller
from tailrace.broker.leading.log_ends import Leaderless
from tailrace.cluster.features import SUPPORTED
from tailrace.cluster.image import BrokerEndpoint, BrokerImage, ClusterImage, PartitionState, TopicImage
from tailrace.cluster.keys import name_key, topic_key
from tailrace.cluster.leaders import LogEnd
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.registration import Registration
from tailrace.cluster.store import ABSENT, Check, Store, Write
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.runtime.tasks import Tasks
from tailrace.stores.memory import MemorySpace, MemoryStore
from tailrace.testing.clock import SimClock
from tailrace.testing.loop import SimLoop

SESSION_TIMEOUT_MS = 9000


async def _all_as_far(
    brokers: Mapping[int, BrokerImage], leaderless: Sequence[Leaderless], *_: object
) -> dict[TopicPartition, dict[int, LogEnd]]:
    """Every replica has the same log."""
    return {partition: dict.fromkeys(replicas, LogEnd(1, 10)) for partition, _, replicas in leaderless}


async def all_answer(
    brokers: Mapping[int, BrokerImage], led: Sequence[tuple[TopicPartition, int, int]]
) -> Collection[TopicPartition]:
    """Every leader that a broker asks before it stops is there."""
    return [partition for partition, _, _ in led]


class Member:
    """One broker of a cluster, as far as metadata goes."""

    def __init__(self, store: Store, clock: SimClock, broker_id: int, settings: dict[str, str] | None = None) -> None:
        #: What the controller is told of the logs of replicas.
        self.ask_log_ends: AskLogEnds = _all_as_far
        self.store = store
        self.clock = clock
        self.broker_id = broker_id
        self.failures: list[BaseException] = []
        self.tasks = Tasks(self.failures.append)
        # Another one at each start, or two topics would get one id.
        random = Random(f"{broker_id} {clock.monotonic()}")
        self.config = BrokerConfig({"node.id": str(broker_id), **(settings or {})})
        self.metadata = ClusterMetadata(store, random, broker_id, self.tasks)
        self.registration = Registration(store, self.metadata, clock, random, broker_id, SESSION_TIMEOUT_MS, self.tasks)
        self.controller = Controller(
            self.config,
            store,
            self.metadata,
            self.registration,
            broker_id,
            self.tasks,
            lambda *arguments: self.ask_log_ends(*arguments),
            lambda: {OFFSETS_TOPIC: self.config.get_int("offsets.topic.replication.factor")},
        )
        self.images: list[ClusterImage] = []
        self.metadata.on_change = self._changed

    async def _changed(self, before: ClusterImage) -> None:
        self.images.append(self.metadata.image)

    async def start(self, directories: Sequence[str] | None = None, stopped_in_epoch: int | None = None) -> None:
        """Come up as a broker does, with the mark of a clean stop or without."""
        await self.metadata.load("cluster")
        await self.registration.claim(directories or [f"directory {self.broker_id}"], stopped_in_epoch)
        await self.metadata.start()
        await self.registration.register(broker(self.broker_id, self.clock.wall_ms()))
        await self.controller.start()

    async def stop(self) -> int:
        """Stop cleanly; the epoch for the mark."""
        await self.registration.hand_over(all_answer)
        await self.controller.close()
        await self.registration.close()
        await self.tasks.cancel()
        return self.registration.epoch

    def kill(self) -> None:
        """End without a word."""
        self.tasks.abandon()
        if isinstance(self.store, MemoryStore):
            self.store.abandon()


def broker(broker_id: int, started_ms: int = 0) -> BrokerImage:
    endpoints = (BrokerEndpoint("PLAINTEXT", f"host{broker_id}", 9092),)
    return BrokerImage(
        broker_id, endpoints, host=f"machine{broker_id}", pid=4711, started_ms=started_ms, features=SUPPORTED
    )


class World:
    """A key space in virtual time, and its clients."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.space = MemorySpace(self.clock)
        #: What a test looks at and changes the store with.
        self.store = MemoryStore(self.space)
        self.members: list[Member] = []

    def member(self, broker_id: int, **settings: str) -> Member:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        member = Member(MemoryStore(self.space), self.clock, broker_id, named)
        self.members.append(member)
        return member

    async def started(self, *broker_ids: int, **settings: str) -> list[Member]:
        members = [self.member(broker_id, **settings) for broker_id in broker_ids]
        for member in members:
            await member.start()
        return members

    async def put_topic(self, name: str, *states: PartitionState, **configs: str) -> TopicImage:
        """Store a topic as if some broker had made it so."""
        lineage = uuid5(NAMESPACE_DNS, name)
        named = {key.replace("_", "."): value for key, value in configs.items()}
        topic = TopicImage(name, lineage, states, MappingProxyType(named))
        done = await self.store.txn(
            [Check(topic_key(lineage), ABSENT)],
            [Write(topic_key(lineage), topic.to_bytes()), Write(name_key(name), str(lineage).encode())],
        )
        assert done is not None
        return topic

    async def put(self, key: str, value: bytes) -> None:
        """Store a value in place of another."""
        entry = await self.store.get(key)
        assert entry is not None
        assert await self.store.txn([Check(key, entry.version)], [Write(key, value)]) is not None

    async def stored(self, topic: TopicImage) -> TopicImage:
        entry = await self.store.get(topic_key(topic.lineage))
        assert entry is not None
        return TopicImage.from_bytes(entry.value)

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let time go by until something holds."""
        deadline = self.clock.monotonic() + seconds
        while not condition():
            assert self.clock.monotonic() < deadline, "it never came to hold"
            await asyncio.sleep(0.05)


def run(test: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    """Run a test in virtual time."""
    loop = SimLoop(seed)
    world = World(loop)
    loop.run(test(world))
    assert [failure for member in world.members for failure in member.failures] == []


def state(replicas: str, isr: str, leader: int, epoch: int = 5) -> PartitionState:
    return PartitionState(tuple(map(int, replicas)), tuple(map(int, isr)), leader, epoch)
