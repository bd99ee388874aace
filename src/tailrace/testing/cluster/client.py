"""A client of a simulated cluster: it finds leaders by Metadata and connects to them, as client libraries do.

Owns its connections and its knowledge of leaders. Invariant: it never returns to a leader epoch older than one that it
has seen. It knows a topic that may be deleted and created again by its id, under a name that no other topic ever has.
Any failure is a `ConnectionError`, after which the caller asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tailrace.errors import ErrorCode
from tailrace.model import TopicId, TopicPartition
from tailrace.runtime.transport import Network
from tailrace.testing.client import KafkaClient
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_METADATA_VERSION = 12
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 5.0


class ClusterClient:
    """A program that talks to the brokers."""

    def __init__(self, name: str, network: Network, addresses: Sequence[tuple[str, int]], random: Random) -> None:
        self.name = name
        self._network = network
        self._addresses = list(addresses)
        self._random = random
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, tuple[int, int]] = {}
        self._connections: dict[tuple[str, int], KafkaClient] = {}
        #: Topics that are requested by id, by their names here.
        self.ids: dict[str, TopicId] = {}
        #: The number of partitions of each topic, as far as this client knows.
        self.partitions: dict[str, int] = {}

    async def connect(self, address: tuple[str, int]) -> KafkaClient:
        """Return a connection to an address; it is kept for the next time."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        try:
            connection = await KafkaClient.connect(self._network, *address, self.name, _CONNECT_SECONDS)
        except OSError as error:
            raise ConnectionError(f"{self.name} cannot reach {address}: {error}") from None
        self._connections[address] = connection
        return connection

    async def any_broker(self) -> KafkaClient:
        """Return a connection to a random broker."""
        return await self.connect(self._random.choice([*self._addresses, *self._brokers.values()]))

    async def refresh(self, topic: str) -> None:
        """Ask a broker for the leaders of a topic's partitions."""
        topic_id = self.ids.get(topic)
        wanted = MetadataRequestTopic(name=topic) if topic_id is None else _by_id(topic_id)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        connection = await self.any_broker()
        response = await connection.call(request, _METADATA_VERSION, MetadataResponse, _ANSWER_SECONDS)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for found in response.topics:
            if found.error_code or found.name is None:
                continue
            self.partitions[topic] = max(self.partitions.get(topic, 0), len(found.partitions))
            for state in found.partitions:
                partition = TopicPartition(topic, state.partition_index)
                _, known_epoch = self._leaders.get(partition, (-1, -1))
                if state.leader_epoch >= known_epoch:
                    self._leaders[partition] = (state.leader_id, state.leader_epoch)

    async def leader_of(self, partition: TopicPartition) -> tuple[KafkaClient, int, int]:
        """Return a connection to the leader of a partition, the leader's id and its epoch."""
        leader, epoch = self._leaders.get(partition, (-1, -1))
        if leader not in self._brokers:
            await self.refresh(partition.topic)
            leader, epoch = self._leaders.get(partition, (-1, -1))
        address = self._brokers.get(leader)
        if address is None:
            raise ConnectionError(f"{partition} has no leader")
        return await self.connect(address), leader, epoch

    def doubt(self, partition: TopicPartition) -> None:
        """Look up the leader before the next request, as it may have changed; its epoch is remembered."""
        _, epoch = self._leaders.get(partition, (-1, -1))
        self._leaders[partition] = (-1, epoch)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def _by_id(topic_id: TopicId) -> MetadataRequestTopic:
    return MetadataRequestTopic(name=None, topic_id=topic_id)


def code_of(number: int) -> ErrorCode:
    """Convert an error code of a response; an unknown one is a fault of the broker."""
    return ErrorCode(number)
