"""The cluster's metadata at one moment: brokers, topics and configuration. Immutable; a change makes another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from tailrace.cluster.archives import ArchiveState
from tailrace.cluster.keys import known_format, reading

#: 2 writes a partition as a list; 1 wrote it as an object, and is still read.
_TOPIC_FORMAT = 2
_CONFIGS_FORMAT = 1
_BROKER_FORMAT = 1
#: The leader of a partition that has none.
NO_LEADER = -1
#: The name under which the image keeps the configuration that all brokers share, which is also what clients call it.
ALL_BROKERS = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition and who leads it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: identity, partitions and what was configured for it."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """As the store holds it."""
        return json.dumps(
            {
                "version": _TOPIC_FORMAT,
                "name": self.name,
                "topic_id": str(self.topic_id),
                "configs": dict(self.configs),
                "partitions": [
                    (state.replicas, state.isr, state.leader, state.leader_epoch) for state in self.partitions
                ],
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> TopicImage:
        data = known_format(value, _TOPIC_FORMAT, "a topic")
        with reading(f"topic {data.get('name')}"):
            partitions = data["partitions"]
            if data["version"] == 1:
                partitions = [
                    (each["replicas"], each["isr"], each["leader"], each["leader_epoch"]) for each in partitions
                ]
            return cls(
                data["name"],
                UUID(data["topic_id"]),
                tuple(
                    [
                        PartitionState(tuple(replicas), tuple(isr), leader, leader_epoch)
                        for replicas, isr, leader, leader_epoch in partitions
                    ]
                ),
                MappingProxyType(dict(data["configs"])),
            )


def configs_to_bytes(configs: Mapping[str, str]) -> bytes:
    """The configuration of a broker as the store holds it."""
    return json.dumps({"version": _CONFIGS_FORMAT, "configs": dict(configs)}, separators=(",", ":")).encode()


def configs_from_bytes(value: bytes) -> Mapping[str, str]:
    """What `configs_to_bytes` wrote."""
    data = known_format(value, _CONFIGS_FORMAT, "a broker's configuration")
    with reading("a broker's configuration"):
        return MappingProxyType(dict(data["configs"]))


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Where clients reach a broker through one listener."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One broker that is alive."""

    broker_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    #: Which start of the broker this is: each has a larger one.
    epoch: int = 0
    #: The machine it runs on, which may fail as a whole.
    host: str = ""
    pid: int = 0
    #: By which its log directories are known wherever they are mounted.
    directory_ids: tuple[str, ...] = ()
    software_version: str = ""
    started_ms: int = 0
    #: Whether what archives are read with is installed there.
    reads_archives: bool = True

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Its address for clients that came through a listener of that name."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    def to_bytes(self) -> bytes:
        """As the store holds it."""
        return json.dumps(
            {
                "version": _BROKER_FORMAT,
                "broker_id": self.broker_id,
                "endpoints": [(endpoint.listener, endpoint.host, endpoint.port) for endpoint in self.endpoints],
                "rack": self.rack,
                "epoch": self.epoch,
                "host": self.host,
                "pid": self.pid,
                "directory_ids": self.directory_ids,
                "software_version": self.software_version,
                "started_ms": self.started_ms,
                "reads_archives": self.reads_archives,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> BrokerImage:
        data = known_format(value, _BROKER_FORMAT, "the registration of a broker")
        with reading(f"the registration of broker {data.get('broker_id')}"):
            return cls(
                data["broker_id"],
                tuple(BrokerEndpoint(*endpoint) for endpoint in data["endpoints"]),
                data["rack"],
                data["epoch"],
                data["host"],
                data["pid"],
                tuple(data["directory_ids"]),
                data["software_version"],
                data["started_ms"],
                # Of an earlier version: nothing is given up for an archive that it may be unable to read.
                data.get("reads_archives", False),
            )


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything a broker tells clients about the cluster."""

    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    #: What was set at run time, by broker id as text, and for `ALL_BROKERS`.
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: What of topics is archived, by their ids; nothing of one that is not here.
    archives: Mapping[UUID, ArchiveState] = field(default_factory=dict)

    def reachable_through(self, listener: str) -> list[tuple[BrokerImage, BrokerEndpoint]]:
        """The brokers that have a listener of that name, and their addresses there."""
        found = [(broker, broker.endpoint(listener)) for broker in self.brokers.values()]
        return [(broker, endpoint) for broker, endpoint in found if endpoint is not None]

    def with_topics(self, *changed: TopicImage) -> ClusterImage:
        """The image after topics were created or changed."""
        return self.with_topic_changes(changed, ())

    def with_topic_changes(self, changed: Iterable[TopicImage], removed: Iterable[UUID]) -> ClusterImage:
        """The image after topics were deleted, and others created or changed."""
        topics, by_id = dict(self.topics), dict(self.topics_by_id)
        for topic_id in removed:
            former = by_id.pop(topic_id, None)
            if former is not None and topics[former.name].topic_id == topic_id:
                del topics[former.name]
        for topic in changed:
            replaced = topics.get(topic.name)
            if replaced is not None and replaced.topic_id != topic.topic_id:
                by_id.pop(replaced.topic_id, None)
            topics[topic.name] = by_id[topic.topic_id] = topic
        return replace(self, topics=MappingProxyType(topics), topics_by_id=MappingProxyType(by_id))

    def configs_of(self, broker: str) -> Mapping[str, str]:
        """What was set at run time for a broker, or for all."""
        return self.broker_configs.get(broker, MappingProxyType({}))

    def with_broker_configs(self, broker: str, configs: Mapping[str, str]) -> ClusterImage:
        """The image after something was set for a broker, or for all."""
        return replace(self, broker_configs=MappingProxyType({**self.broker_configs, broker: configs}))

    def without_topic(self, topic: TopicImage) -> ClusterImage:
        """The image after a topic was deleted."""
        return self.with_topic_changes((), (topic.topic_id,))
