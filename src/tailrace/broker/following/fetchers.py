"""What this broker follows: for each broker that leads something of it a fetcher, or several (num.replica.fetchers).

Whoever applies the image says what is to be followed, after the partition itself has been told of its leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.following.fetcher import Follower, ReplicaFetcher
from tailrace.broker.following.leader_session import PartitionKey, key_of
from tailrace.broker.network.broker_identity import BrokerIdentity
from tailrace.broker.network.peer import peer_endpoint
from tailrace.cluster.image import BrokerEndpoint, BrokerImage
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks


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
        self._places: dict[PartitionKey, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that are followed."""
        return iter([followed.partition for fetcher in self._fetchers.values() for followed in fetcher.session])

    @property
    def failed_count(self) -> int:
        """How many partitions are followed but could not be fetched when that was last tried."""
        return sum(1 for fetcher in self._fetchers.values() for followed in fetcher.session if followed.failures)

    def follow(self, partition: Partition, leader: BrokerImage) -> None:
        """Pull a partition, in its present leader epoch, from its leader; nothing where that is done already."""
        key = key_of(partition)
        number = (partition.topic_id.int + key[1]) % self._config.get_int("num.replica.fetchers")
        place = leader.broker_id, number
        if self._places.get(key, place) != place:
            self.unfollow(partition)
        self._places[key] = place
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ReplicaFetcher(self._follower, leader, number)
        fetcher.meet(leader)
        fetcher.add(partition)

    def unfollow(self, partition: Partition) -> None:
        """Pull a partition no more."""
        place = self._places.pop(key_of(partition), None)
        if place is None:
            return
        fetcher = self._fetchers[place]
        fetcher.remove(partition)
        if not len(fetcher.session):
            del self._fetchers[place]
            fetcher.close()

    def promised(self, partition: Partition) -> None:
        """A log is as durable as its topic asks for up to its end: its leader may be told of what was appended."""
        place = self._places.get(key_of(partition))
        if place is not None:
            self._fetchers[place].promised(partition)

    def close(self) -> None:
        """Pull nothing any more."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._places.clear()

    def _endpoint_of(self, broker: BrokerImage) -> BrokerEndpoint:
        return peer_endpoint(broker, self._config.get_optional_str("inter.broker.listener.name"))
