"""How one kind of coordinator differs from others, and what the broker provides to every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

from tailrace.cluster.image import TopicImage
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.coordinator.operations import Operations
from tailrace.coordinator.shard import S
from tailrace.replication.partition import Partition
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings with which an internal topic is created."""

    partitions: int
    #: Fewer while there are fewer brokers; the controller adds the missing replicas later.
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """One kind of coordinator."""

    #: The internal topic for its records; also listed in `model.INTERNAL_TOPICS`.
    topic: str
    #: How messages to clients name the topic, for example "offsets topic".
    title: str
    #: Called when the topic is created.
    settings: Callable[[], TopicSettings]
    #: Makes the empty shard of a partition; the shard writes and reads through these operations.
    make: Callable[[Operations], S]


class HostedPartitions(Protocol):
    """The partitions on this broker."""

    def find(self, topic: str, number: int) -> Partition:
        """The partition with this name and number; raises an error if it is not on this broker."""
        ...

    def is_cut_off(self, topic: TopicImage, number: int) -> bool:
        """Whether this broker leads the partition in the image, but another may have taken over."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """The broker, as coordinators see it."""

    broker_id: int
    metadata: ClusterMetadata
    partitions: HostedPartitions
    clock: Clock
    tasks: Tasks
