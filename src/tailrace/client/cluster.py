"""The state of a cluster: its brokers, its controller and its partitions.

Owns the requests and the values they return; must not know how they are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.client.connection import DEFAULT_BOOTSTRAP
from tailrace.client.errors import ClientError
from tailrace.client.request import ask
from tailrace.errors import ErrorCode
from tailrace.protocol_client.settings import join_address
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_DESCRIBE = Versions(0, 0)
_METADATA = Versions(4, 9)
_CONFIGS = Versions(1, 4)
_NOBODY = -1
_TOPIC = 2
_MIN_INSYNC_REPLICAS = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A live broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        """Its address, as `--bootstrap` takes it."""
        return join_address((self.host, self.port))


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A partition: its leader, replicas and in-sync replicas."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    #: How many in-sync replicas it needs to accept writes with acks=all.
    min_insync_replicas: int = 1

    @property
    def is_offline(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def refuses_writes(self) -> bool:
        """True if writes with acks=all are refused because too few replicas are in sync."""
        return not self.is_offline and len(self.isr) < self.min_insync_replicas


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster as one of its brokers sees it."""

    cluster_id: str
    controller: int | None
    brokers: Sequence[BrokerState]
    topics: int
    partitions: Sequence[ReplicaState]
    #: What the broker says about itself: that it cannot reach the metadata store.
    warning: str | None = None

    @property
    def missing(self) -> dict[int, int]:
        """Brokers with replicas that are not alive, and the number of partitions of which each has a replica."""
        live = {broker.broker_id for broker in self.brokers}
        counts: dict[int, int] = {}
        for partition in self.partitions:
            for replica in partition.replicas:
                if replica not in live:
                    counts[replica] = counts.get(replica, 0) + 1
        return dict(sorted(counts.items()))

    @property
    def leaders(self) -> dict[int, int]:
        """The number of partitions that each broker leads."""
        counts = {broker.broker_id: 0 for broker in self.brokers}
        for partition in self.partitions:
            if partition.leader is not None:
                counts[partition.leader] = counts.get(partition.leader, 0) + 1
        return counts


def describe_cluster(bootstrap: str = DEFAULT_BOOTSTRAP, topic: str | None = None) -> ClusterState:
    """Describe the cluster behind a bootstrap address, with the partitions of all topics or of one."""
    doing = "describing the cluster"
    cluster = ask(bootstrap, DescribeClusterRequest(), _DESCRIBE, DescribeClusterResponse, doing=doing)
    if cluster.error_code:
        raise ClientError(f"{doing} failed: {cluster.error_message or ErrorCode(cluster.error_code).name}")
    wanted = None if topic is None else [MetadataRequestTopic(name=topic)]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    metadata = ask(bootstrap, request, _METADATA, MetadataResponse, doing=doing)
    topics = sorted((each for each in metadata.topics if not each.error_code), key=lambda each: each.name or "")
    # If all replicas are in sync, as nearly always, their required number need not be looked up.
    behind = [
        each.name or ""
        for each in topics
        if any(len(partition.isr_nodes) < len(partition.replica_nodes) for partition in each.partitions)
    ]
    needed = _min_insync_replicas(bootstrap, behind)
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
                each.name or "",
                partition.partition_index,
                None if partition.leader_id == _NOBODY else partition.leader_id,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                needed.get(each.name or "", 1),
            )
            for each in topics
            for partition in sorted(each.partitions, key=lambda partition: partition.partition_index)
        ],
        cluster.error_message,
    )


def _min_insync_replicas(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    if not topics:
        return {}
    resources = [
        DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=[_MIN_INSYNC_REPLICAS])
        for name in topics
    ]
    request = DescribeConfigsRequest(resources=resources)
    response = ask(bootstrap, request, _CONFIGS, DescribeConfigsResponse, doing="describing the cluster")
    return {
        result.resource_name: int(config.value)
        for result in response.results
        for config in result.configs
        if config.name == _MIN_INSYNC_REPLICAS and config.value is not None
    }


def write_problem(bootstrap: str, topic: str) -> str | None:
    """Return why records of a topic are not acknowledged, judging by its replicas; None if these look good."""
    state = describe_cluster(bootstrap, topic)
    for partition in state.partitions:
        name = f"{partition.topic}-{partition.partition}"
        gone = [str(replica) for replica in partition.replicas if replica in state.missing]
        missing = f"; not running: broker {', '.join(gone)}" if gone else ""
        if partition.is_offline:
            return f"{name} has no leader{missing}"
        if partition.refuses_writes:
            return (
                f"{name} refuses writes: {len(partition.isr)} of {len(partition.replicas)} replicas are in sync, and "
                f"min.insync.replicas={partition.min_insync_replicas}{missing}"
            )
    return None
