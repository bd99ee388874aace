"""Which brokers hold the replicas of a new topic's partitions. Pure: brokers in, assignment out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.cluster.image import PartitionState
from tailrace.errors import ErrorCode, KafkaError


def place_replicas(brokers: Sequence[int], partitions: int, replication_factor: int) -> tuple[PartitionState, ...]:
    """Spread partitions over brokers in turn, leaders first; never two replicas on one broker."""
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"Number of partitions was set to an invalid non-positive value: {partitions}"
        )
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"Replication factor must be larger than 0, not {replication_factor}"
        )
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): "
            f"only {len(brokers)} broker(s) are registered",
        )
    order = sorted(brokers)
    return tuple(
        _fresh(tuple(order[(number + turn) % len(order)] for turn in range(replication_factor)))
        for number in range(partitions)
    )


def use_assignment(brokers: Sequence[int], assignment: Mapping[int, Sequence[int]]) -> tuple[PartitionState, ...]:
    """Take the replicas that a request asks for, if they make sense."""
    if sorted(assignment) != list(range(len(assignment))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be a consecutive 0-based range in an assignment"
        )
    states = []
    for number in range(len(assignment)):
        replicas = tuple(assignment[number])
        if not replicas or len(dict.fromkeys(replicas)) != len(replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {number} has no replica, or one broker twice"
            )
        unknown = [broker for broker in replicas if broker not in brokers]
        if unknown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {number} names unknown brokers {unknown}"
            )
        states.append(_fresh(replicas))
    return tuple(states)


def _fresh(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(replicas, replicas, replicas[0], 0)
