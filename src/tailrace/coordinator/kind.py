"""What makes one kind of coordinator different from all others, and what the broker lends to every kind."""

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
    """How an internal topic is created."""

    partitions: int
    #: Fewer while there are fewer brokers; the controller adds the others later.
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """One kind of coordinator."""

    #: The internal topic that has its records; named in `model.INTERNAL_TOPICS`, too.
    topic: str
    #: What clients are told of the topic: "the offsets topic".
    title: str
    #: Asked when the topic is created.
    settings: Callable[[], TopicSettings]
    #: Makes the empty shard of a partition, which writes and reads by the operations given.
    make: Callable[[Operations], S]


class HostedPartitions(Protocol):
    """The partitions on this broker."""

    def find(self, topic: str, number: int) -> Partition:
        """The partition of that name, or why it is not here."""
        ...

    def is_cut_off(self, topic: TopicImage, number: int) -> bool:
        """Whether this broker leads a partition by the image and another may by now."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """The broker, as coordinators see it."""

    broker_id: int
    metadata: ClusterMetadata
    partitions: HostedPartitions
    clock: Clock
    tasks: Tasks
