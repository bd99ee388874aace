"""The clients of a simulated cluster: producers, readers and group members, and whether they have finished.

Owns the clients of one run and their tasks. The caller decides which clients there are, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tailrace.model import TopicId, TopicPartition
from tailrace.testing.cluster.client import ClusterClient
from tailrace.testing.cluster.group_members import ClassicMember, ConsumerMember, GroupHistory
from tailrace.testing.cluster.group_reader import GroupReader, GroupReading
from tailrace.testing.cluster.history import ACKS_ALL, GROUP_OFFSETS, ClusterHistory, Violation
from tailrace.testing.cluster.machines import ClusterLog, SimCluster
from tailrace.testing.cluster.roving_producer import RovingProducer
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.cluster.workload import ClusterConsumer, ClusterProducer

if TYPE_CHECKING:
    from tailrace.testing.cluster.archived_topic import ArchivedTopic

GROUP = "billing"
ORDERS = "orders"
MIN_INSYNC_REPLICAS = 2


@dataclass(slots=True)
class ClusterLoad:
    """The clients of one run."""

    cluster: SimCluster
    history: ClusterHistory
    watch: ClusterWatch
    random: Random
    pause_seconds: float
    groups: GroupHistory
    log: ClusterLog
    #: The time without a response after which a producer gives up its records; None for never.
    give_up_seconds: float | None = None
    #: What members of groups have read, if they read what they commit.
    reading: GroupReading | None = None
    archive: ArchivedTopic | None = None
    names: list[str] = field(default_factory=list)
    #: Topics that clients know by id, by their names here.
    ids: dict[str, TopicId] = field(default_factory=dict)
    #: Producers whose topic was deleted.
    ended_producers: list[ClusterProducer | RovingProducer] = field(default_factory=list)
    _readers: int = 0
    producers: list[ClusterProducer | RovingProducer] = field(default_factory=list)
    consumers: list[ClusterConsumer] = field(default_factory=list)
    members: list[ClassicMember | ConsumerMember] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    producing: list[asyncio.Task[None]] = field(default_factory=list)

    def client(self, name: str) -> ClusterClient:
        self.names.append(name)
        random = self.cluster.loop.random_for(f"client {name}")
        client = ClusterClient(name, self.cluster.network.host(name), self.cluster.addresses, random)
        client.ids = self.ids
        return client

    def use_for_a_while(self, name: str, topic_id: TopicId, partitions: int) -> None:
        """Give a topic that may be deleted producers and readers, which know it by its id."""
        self.ids[name] = topic_id
        for number in range(partitions):
            self.use(TopicPartition(name, number))

    def end_use(self, name: str) -> None:
        """End the clients of a topic that was deleted."""
        for tasks, clients in ((self.producing, self.producers), (self.tasks, self.consumers)):
            gone = {each.name for each in clients if _is_of(each, name)}
            for task in tasks:
                if task.get_name() in gone:
                    if task.done():
                        _result_of(task)
                    task.cancel()
            tasks[:] = [task for task in tasks if task.get_name() not in gone]
        for each in [*self.producers, *self.consumers]:
            if _is_of(each, name):
                each.client.close()
        self.ended_producers += [each for each in self.producers if _is_of(each, name)]
        self.producers[:] = [each for each in self.producers if not _is_of(each, name)]
        self.consumers[:] = [each for each in self.consumers if not _is_of(each, name)]

    def produce(self, partition: TopicPartition, acks: int, *, is_idempotent: bool = False) -> None:
        loop = self.cluster.loop
        name = f"p{len(self.producers) + len(self.ended_producers)}"
        producer = ClusterProducer(
            name,
            partition,
            acks,
            is_idempotent,
            self.client(name),
            loop,
            loop.random_for(name),
            self.history,
            self.watch,
            MIN_INSYNC_REPLICAS,
            self.pause_seconds,
            self.give_up_seconds,
        )
        self.producers.append(producer)
        self.producing.append(loop.create_task(producer.run(), name=name))

    def rove(self, partitions: Sequence[TopicPartition], silence_seconds: float) -> None:
        """Start a producer to several partitions."""
        loop = self.cluster.loop
        name = f"p{len(self.producers) + len(self.ended_producers)}"
        producer = RovingProducer(
            name,
            partitions,
            self.client(name),
            loop,
            loop.random_for(name),
            self.history,
            self.watch,
            MIN_INSYNC_REPLICAS,
            self.pause_seconds,
            silence_seconds,
            self.give_up_seconds or float("inf"),
        )
        self.producers.append(producer)
        self.producing.append(loop.create_task(producer.run(), name=name))

    def consume(self, partition: TopicPartition, *, starts_over: float = 0.0) -> None:
        loop = self.cluster.loop
        name = f"c{self._readers}"
        self._readers += 1
        random = loop.random_for(name)
        consumer = ClusterConsumer(name, partition, self.client(name), loop, random, self.history, starts_over)
        self.consumers.append(consumer)
        self.tasks.append(loop.create_task(consumer.run(), name=name))

    def read_again(self, directory: str) -> None:
        """Make the consumers of a partition, given as the name of its directory, start over."""
        for consumer in self.consumers:
            # A topic that is not the first with its name has a number after it here.
            if f"{consumer.partition.topic.partition('+')[0]}-{consumer.partition.partition}" == directory:
                consumer.shall_start_over = True

    def use(self, partition: TopicPartition) -> None:
        """Give a partition a random kind of producer and a reader."""
        kind = self.random.choice(["idempotent", "plain", "two", "leader"])
        acks = {"two": 2, "leader": 1}.get(kind, ACKS_ALL)
        self.produce(partition, acks, is_idempotent=kind == "idempotent")
        self.consume(partition)

    def join(self, topic_id: TopicId, partitions: int) -> None:
        """Start a member of the group."""
        loop = self.cluster.loop
        name = f"m{len(self.members)}"
        self.names.append(name)
        host, port = self.random.choice(self.cluster.addresses)
        common = (name, GROUP, ORDERS, self.cluster.network.host(name), host, port, loop, loop.random_for(name))
        member: ClassicMember | ConsumerMember
        if self.random.random() < 0.5:
            member = ClassicMember(*common, self.groups, bootstrap=self.cluster.addresses, partitions=partitions)
        else:
            member = ConsumerMember(*common, self.groups, bootstrap=self.cluster.addresses, topic_id=topic_id)
        if self.reading is not None:
            member.reader = GroupReader(ORDERS, self.client(f"{name} reading"), self.reading)
        self.members.append(member)
        self.tasks.append(loop.create_task(member.run(), name=name))

    def check(self) -> None:
        """Raise the errors of clients: a client only ends by itself after a violation."""
        for task in [*self.tasks, *self.producing]:
            if task.done():
                _result_of(task)


def _result_of(task: asyncio.Task[None]) -> None:
    try:
        task.result()
    except Violation:
        raise
    except AssertionError as error:
        if task.get_name().startswith("m"):
            raise Violation(GROUP_OFFSETS, str(error)) from error
        raise


def _is_of(client: ClusterProducer | RovingProducer | ClusterConsumer, topic: str) -> bool:
    return isinstance(client, ClusterProducer | ClusterConsumer) and client.partition.topic == topic
