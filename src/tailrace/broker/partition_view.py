"""What clients of one listener see of a partition: its reachable leader, or why there is none, and offline replicas.

Clients cannot reach a broker that is down or has no such listener. A broker that may have been deposed without knowing
names another replica in its place, although that one may not lead either. Clients ask brokers to which they are
connected, and a client that is connected only to this one would ask it for ever. The other replica knows the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tailrace.cluster.image import NO_LEADER, BrokerEndpoint, BrokerImage, ClusterImage, TopicImage, replica_to_ask
from tailrace.errors import ErrorCode


class PartitionView(NamedTuple):
    """The leader as seen through a listener; -1 with an error code if there is none."""

    leader_id: int
    error: ErrorCode
    offline_replicas: list[int]


class ListenerView:
    """The brokers of an image that clients can reach through one listener."""

    def __init__(
        self, image: ClusterImage, listener: str, is_cut_off: Callable[[TopicImage, int], bool] | None = None
    ) -> None:
        self.image = image
        self._is_cut_off = is_cut_off
        self.brokers: Mapping[int, tuple[BrokerImage, BrokerEndpoint]] = {
            broker.broker_id: (broker, endpoint) for broker, endpoint in image.reachable_through(listener)
        }

    def of(self, topic: TopicImage, number: int) -> PartitionView:
        """Return a partition as clients see it."""
        brokers, state = self.brokers, topic.partitions[number]
        offline = [replica for replica in state.replicas if replica not in brokers]
        if self._is_cut_off is not None and self._is_cut_off(topic, number):
            other = replica_to_ask(state, brokers)
            error = ErrorCode.NONE if other != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE
            return PartitionView(other, error, offline)
        if state.leader in brokers:
            return PartitionView(state.leader, ErrorCode.NONE, offline)
        is_alive = state.leader in self.image.brokers
        return PartitionView(
            NO_LEADER, ErrorCode.LISTENER_NOT_FOUND if is_alive else ErrorCode.LEADER_NOT_AVAILABLE, offline
        )
