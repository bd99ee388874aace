"""All fetchers of this broker: one for each broker that leads partitions of it, or several (num.replica.fetchers).

The code that applies the image decides what to follow, after it has told the partition itself its leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.following.fetcher import Follower, ReplicaFetcher
from tailrace.broker.network.broker_identity import BrokerIdentity
from tailrace.broker.network.peer import peer_endpoint
from tailrace.cluster.image import BrokerEndpoint, BrokerImage
from tailrace.model import Lineage, TopicId
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks


class _Place(NamedTuple):
    """The fetcher of a partition, and the topic id that it uses."""

    #: The leader, and the number of its fetcher.
    fetcher: tuple[int, int]
    topic_id: TopicId


class ReplicaFetchers:
    """Every fetcher of one broker."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        identity: BrokerIdentity,
    ) -> None:
        self._config = config
        self._follower = Follower(
            broker_id, broker_epoch, config, runtime, tasks, identity, self._endpoint_of, self.promised
        )
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._places: dict[tuple[Lineage, int], _Place] = {}

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the followed partitions."""
        return iter([followed.partition for fetcher in self._fetchers.values() for followed in fetcher.session])

    @property
    def failed_count(self) -> int:
        """The number of followed partitions whose last fetch failed."""
        return sum(1 for fetcher in self._fetchers.values() for followed in fetcher.session if followed.failures)

    def follow(self, partition: Partition, leader: BrokerImage, topic_id: TopicId) -> None:
        """Fetch a partition, in its current leader epoch, from its leader; does nothing if it is fetched already."""
        key = _key_of(partition)
        number = (partition.lineage.int + key[1]) % self._config.get_int("num.replica.fetchers")
        place = _Place((leader.broker_id, number), topic_id)
        if self._places.get(key, place) != place:
            self.unfollow(partition)
        self._places[key] = place
        fetcher = self._fetchers.get(place.fetcher)
        if fetcher is None:
            fetcher = self._fetchers[place.fetcher] = ReplicaFetcher(self._follower, leader, number)
        fetcher.meet(leader)
        fetcher.add(partition, topic_id)

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        place = self._places.pop(_key_of(partition), None)
        if place is None:
            return
        fetcher = self._fetchers[place.fetcher]
        fetcher.remove(partition, place.topic_id)
        if not len(fetcher.session):
            del self._fetchers[place.fetcher]
            fetcher.close()

    def promised(self, partition: Partition) -> None:
        """Continue a partition whose log is now durable enough: the leader may learn what was appended."""
        place = self._places.get(_key_of(partition))
        if place is not None:
            self._fetchers[place.fetcher].promised(partition, place.topic_id)

    def close(self) -> None:
        """Stop all fetching."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._places.clear()

    def _endpoint_of(self, broker: BrokerImage) -> BrokerEndpoint:
        return peer_endpoint(broker, self._config.get_optional_str("inter.broker.listener.name"))


def _key_of(partition: Partition) -> tuple[Lineage, int]:
    return partition.lineage, partition.partition.partition
