"""The cluster from the outside: its brokers, its controller, and how its partitions are.

Owns the questions and the values they give; it must not know how they are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.client.connection import DEFAULT_BOOTSTRAP
from tailrace.client.errors import ClientError
from tailrace.client.request import ask
from tailrace.errors import ErrorCode
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse

_DESCRIBE_VERSION = 0
_METADATA_VERSION = 9
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker that is alive."""

    broker_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        """Where it is reached, as `--bootstrap` takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A partition: who leads it, who holds it, who is in sync."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_offline(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster as one of its brokers sees it."""

    cluster_id: str
    controller: int | None
    brokers: Sequence[BrokerState]
    topics: int
    partitions: Sequence[ReplicaState]
    #: What the broker that was asked says of itself: that it is cut off from the metadata store.
    warning: str | None = None

    @property
    def leaders(self) -> dict[int, int]:
        """How many partitions each broker leads."""
        counts = {broker.broker_id: 0 for broker in self.brokers}
        for partition in self.partitions:
            if partition.leader is not None:
                counts[partition.leader] = counts.get(partition.leader, 0) + 1
        return counts


def describe_cluster(bootstrap: str = DEFAULT_BOOTSTRAP) -> ClusterState:
    """The cluster behind a bootstrap address."""
    doing = "describing the cluster"
    cluster = ask(bootstrap, DescribeClusterRequest(), _DESCRIBE_VERSION, DescribeClusterResponse, doing=doing)
    if cluster.error_code:
        raise ClientError(f"{doing} failed: {cluster.error_message or ErrorCode(cluster.error_code).name}")
    metadata = ask(bootstrap, MetadataRequest(topics=None), _METADATA_VERSION, MetadataResponse, doing=doing)
    return ClusterState(
        cluster.cluster_id,
        None if cluster.controller_id == _NOBODY else cluster.controller_id,
        [
            BrokerState(broker.broker_id, broker.host, broker.port, broker.rack)
            for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
        ],
        len(metadata.topics),
        [
            ReplicaState(
                topic.name or "",
                partition.partition_index,
                None if partition.leader_id == _NOBODY else partition.leader_id,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
            )
            for topic in sorted(metadata.topics, key=lambda topic: topic.name or "")
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ],
        cluster.error_message,
    )
