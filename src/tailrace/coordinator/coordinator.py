"""One kind of coordinator on one broker: its internal topic, the shards this broker leads, and the lookup of a key.

The hash of a key chooses the partition, and the leader of the partition coordinates the key. The first client that
looks for a coordinator causes the topic to be created. Invariant: a shard writes only in the leader epoch in which it
was loaded. Nothing here knows what a kind coordinates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Generic

from tailrace.cluster.image import NO_LEADER, BrokerEndpoint, ClusterImage, TopicImage, replica_to_ask
from tailrace.coordinator.kind import Host, Kind
from tailrace.coordinator.shard import S
from tailrace.coordinator.shards import Shards, partition_for
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.replication.partition import Partition

logger = logging.getLogger("tailrace.coordinator")


class Coordinator(Generic[S]):
    """Finds the shard of a key, or the broker that has it."""

    def __init__(self, kind: Kind[S], host: Host) -> None:
        self._kind = kind
        self._topic = kind.topic
        self._host = host
        self._metadata = host.metadata
        self._shards: Shards[S] = Shards(host.clock, host.tasks, kind.make)

    def __iter__(self) -> Iterator[S]:
        """The shards that are loaded on this broker."""
        return iter(self._shards)

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def replication_factor(self) -> int:
        """The topic's target number of replicas, reached once there are enough brokers."""
        return self._kind.settings().replication_factor

    @property
    def is_loading(self) -> bool:
        return self._shards.is_loading

    # --- finding

    def shard(self, key: str) -> S:
        """The shard of a key; raises an error if this broker cannot serve it."""
        topic = self._metadata.image.topics.get(self._topic)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return self._shards.find(partition_for(key, len(topic.partitions)))

    def partition_of(self, key: str) -> TopicPartition:
        """The partition that has the state of a key; raises an error if the topic does not exist."""
        topic = self._metadata.image.topics.get(self._topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The {self._kind.title} does not exist yet.")
        return TopicPartition(self._topic, partition_for(key, len(topic.partitions)))

    async def created_partition_of(self, key: str) -> TopicPartition:
        """The partition that has the state of a key; creates the topic if it does not exist."""
        if self._topic not in self._metadata.image.topics:
            await self._create_topic()
        return self.partition_of(key)

    def leader_of(self, key: str) -> int:
        """The broker that coordinates a key; raises an error if there is none."""
        topic, number = self.partition_of(key)
        leader = self._metadata.image.topics[topic].partitions[number].leader
        if leader == NO_LEADER:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
        return leader

    def shard_of_partition(self, number: int) -> S:
        """The shard of a partition; markers of transactions are addressed by partition."""
        return self._shards.find(number)

    async def locate(self, key: str, listener: str) -> tuple[int, BrokerEndpoint]:
        """The broker that coordinates a key, and its address on a listener."""
        topic = self._metadata.image.topics.get(self._topic) or await self._create_topic()
        number = partition_for(key, len(topic.partitions))
        state, brokers = topic.partitions[number], self._metadata.image.brokers
        is_cut_off = self._host.partitions.is_cut_off(topic, number)
        broker = brokers.get(replica_to_ask(state, brokers) if is_cut_off else state.leader)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is None or endpoint is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
        return broker.broker_id, endpoint

    async def _create_topic(self) -> TopicImage:
        settings = self._kind.settings()
        brokers = len(self._metadata.image.brokers)
        try:
            planned = self._metadata.plan_topic(
                self._topic,
                settings.partitions,
                # The controller adds replicas when more brokers join.
                min(settings.replication_factor, max(brokers, 1)),
                {},
                settings.configs,
            )
            await self._metadata.create_topic(planned)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        topic = self._metadata.image.topics.get(self._topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The {self._kind.title} is being created.")
        return topic

    # --- following the image

    def apply(self, before: ClusterImage, after: ClusterImage) -> None:
        """Load the shards that this broker now leads, and drop those that it no longer leads."""
        topic, earlier = after.topics.get(self._topic), before.topics.get(self._topic)
        if topic is not earlier:
            self._follow_leaders(topic, earlier)

    def _follow_leaders(self, topic: TopicImage | None, earlier: TopicImage | None) -> None:
        numbers = len(topic.partitions) if topic is not None else 0
        for number in range(max(numbers, len(earlier.partitions) if earlier is not None else 0)):
            if topic is None or number >= numbers or not self._leads(topic, number):
                self._shards.resign(number)
                continue
            try:
                self._shards.lead(self._host.partitions.find(self._topic, number))
            except KafkaError as error:
                self._shards.resign(number)
                logger.error("Cannot coordinate %s-%d on this broker: %s", self._topic, number, error)

    def _leads(self, topic: TopicImage, number: int) -> bool:
        return topic.partitions[number].leader == self._host.broker_id

    def reopened(self, partition: Partition) -> None:
        """A partition that this broker could not open at first is open now."""
        name, number = partition.partition
        topic = self._metadata.image.topics.get(self._topic)
        if name == self._topic and topic is not None and self._leads(topic, number):
            self._shards.lead(partition)

    def close(self) -> None:
        """The broker is stopping: fail every waiting request, so that clients look for another coordinator."""
        self._shards.close()
