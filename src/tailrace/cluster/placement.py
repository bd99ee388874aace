"""Placement of replicas for new partitions, and of additional replicas. Pure: brokers and load in, assignment out.

Replicas of a partition are on different brokers, in different racks and on different machines as far as possible. A
topic's leaders are spread evenly over all brokers, and so are its replicas. Among equal choices, brokers with less load
of all topics come first. The same brokers and load always give the same assignment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from tailrace.cluster.image import BrokerImage, PartitionState, TopicImage
from tailrace.cluster.leaders import with_states
from tailrace.errors import ErrorCode, KafkaError

#: As in Kafka: more would make one change to the metadata too large.
_MAX_PARTITIONS_AT_ONCE = 10_000

T = TypeVar("T")
#: Not a Counter: lookups happen for every broker and every placed replica.
_Counts: TypeAlias = defaultdict[T, int]


def _counts() -> _Counts[T]:
    return defaultdict(int)


@dataclass(slots=True)
class Load:
    """How many partitions each broker leads and holds."""

    leaders: _Counts[int] = field(default_factory=_counts)
    replicas: _Counts[int] = field(default_factory=_counts)
    #: How often a broker follows another, which it may have to replace as the leader.
    pairs: _Counts[tuple[int, int]] = field(default_factory=_counts)

    @classmethod
    def of(cls, topics: Iterable[TopicImage]) -> Load:
        """The load of all brokers with these topics."""
        load = cls()
        leaders, held = load.leaders, load.replicas
        for topic in topics:
            for state in topic.partitions:
                leaders[state.replicas[0]] += 1
                for broker_id in state.replicas:
                    held[broker_id] += 1
        return load

    def add(self, replicas: Sequence[int]) -> None:
        """Add a partition whose preferred leader is the first replica."""
        self.leaders[replicas[0]] += 1
        self.replicas[replicas[0]] += 1
        self.add_followers(replicas[0], replicas[1:])

    def add_followers(self, leader: int, followers: Sequence[int]) -> None:
        """Add followers of a partition."""
        for broker_id in followers:
            self.replicas[broker_id] += 1
            self.pairs[leader, broker_id] += 1


def require_few(partitions: int) -> None:
    """Refuse a request for too many new partitions."""
    if partitions > _MAX_PARTITIONS_AT_ONCE:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def place_replicas(
    brokers: Mapping[int, BrokerImage],
    partitions: int,
    replication_factor: int,
    load: Load | None = None,
    *,
    beside: Sequence[PartitionState] = (),
) -> tuple[PartitionState, ...]:
    """Spread new partitions over brokers; `beside` are the topic's existing partitions."""
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"Number of partitions was set to an invalid non-positive value: {partitions}"
        )
    require_few(partitions)
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"Replication factor must be larger than 0, not {replication_factor}"
        )
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered.",
        )
    everywhere = load or Load()
    own = Load()
    for state in beside:
        own.add(state.replicas)
    states = []
    for _ in range(partitions):
        leader = _least_leading(brokers, own, everywhere)
        replicas = add_replicas((leader,), brokers, replication_factor, own, everywhere)
        own.add(replicas)
        everywhere.add(replicas)
        states.append(_fresh(replicas))
    return tuple(states)


def _least_leading(brokers: Mapping[int, BrokerImage], own: Load, everywhere: Load) -> int:
    return min(
        brokers,
        key=lambda broker_id: (
            own.leaders[broker_id],
            everywhere.leaders[broker_id],
            own.replicas[broker_id],
            everywhere.replicas[broker_id],
            broker_id,
        ),
    )


def add_replicas(
    replicas: tuple[int, ...],
    brokers: Mapping[int, BrokerImage],
    replication_factor: int,
    own: Load,
    everywhere: Load,
) -> tuple[int, ...]:
    """A partition's replicas and additional ones, each as far away from the others as possible."""
    racks: _Counts[str | None] = _counts()
    hosts: _Counts[str] = _counts()
    for broker_id in replicas:
        if broker_id in brokers:
            racks[brokers[broker_id].rack] += 1
            hosts[brokers[broker_id].host] += 1
    while len(replicas) < replication_factor:
        leader = replicas[0]
        chosen = min(
            (broker for broker in brokers.values() if broker.broker_id not in replicas),
            key=lambda broker: (
                racks[broker.rack],
                hosts[broker.host],
                own.replicas[broker.broker_id],
                own.pairs[leader, broker.broker_id],
                everywhere.replicas[broker.broker_id],
                broker.broker_id,
            ),
        )
        racks[chosen.rack] += 1
        hosts[chosen.host] += 1
        replicas = (*replicas, chosen.broker_id)
    return replicas


def use_assignment(brokers: Sequence[int], assignment: Mapping[int, Sequence[int]]) -> tuple[PartitionState, ...]:
    """Use the replicas that a request assigns, if they are valid."""
    require_few(len(assignment))
    if sorted(assignment) != list(range(len(assignment))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be a consecutive 0-based range in an assignment"
        )
    states = []
    for number in range(len(assignment)):
        replicas = tuple(assignment[number])
        if not replicas or len(dict.fromkeys(replicas)) != len(replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {number} has no replica, or the same broker twice"
            )
        unknown = [broker for broker in replicas if broker not in brokers]
        if unknown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {number} names unknown brokers {unknown}"
            )
        states.append(_fresh(replicas))
    return tuple(states)


def use_further_assignment(
    brokers: Sequence[int], assignment: Sequence[Sequence[int]], replication_factor: int
) -> tuple[PartitionState, ...]:
    """Use the replicas that a request assigns to new partitions of an existing topic."""
    require_few(len(assignment))
    manual = "The manual partition assignment includes"
    for replicas in assignment:
        if not replicas:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{manual} an empty replica list.")
        previous: int | None = None
        for broker in sorted(replicas):
            if broker not in brokers:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{manual} broker {broker}, but no such broker is registered."
                )
            if broker == previous:
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{manual} the broker {broker} more than once.")
            previous = broker
        if len(replicas) != replication_factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{manual} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
                f"partitions, which have {replication_factor} replica(s).",
            )
    return tuple(_fresh(tuple(replicas)) for replicas in assignment)


def _fresh(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(replicas, replicas, replicas[0], 0)


# --- further replicas of internal topics


def plan_internal_replication(
    topics: Iterable[TopicImage], brokers: Mapping[int, BrokerImage], factors: Mapping[str, int]
) -> list[TopicImage]:
    """The internal topics that get more replicas, now that there are enough brokers; `factors` are by name."""
    topics = list(topics)
    load = Load.of(topics)
    planned = [(topic, with_replicas(topic, brokers, factors.get(topic.name, 0), load)) for topic in topics]
    return [changed for topic, changed in planned if changed is not topic]


def with_replicas(topic: TopicImage, brokers: Mapping[int, BrokerImage], factor: int, load: Load) -> TopicImage:
    """A topic with up to `factor` replicas; new ones join the ISR when they have caught up."""
    own = Load()
    for state in topic.partitions:
        own.add(state.replicas)

    def after(state: PartitionState) -> PartitionState:
        reachable = sum(1 for broker_id in brokers if broker_id not in state.replicas) + len(state.replicas)
        if len(state.replicas) >= min(factor, reachable):
            return state
        replicas = add_replicas(state.replicas, brokers, min(factor, reachable), own, load)
        further = replicas[len(state.replicas) :]
        own.add_followers(replicas[0], further)
        return replace(state, replicas=replicas)

    return with_states(topic, after)
