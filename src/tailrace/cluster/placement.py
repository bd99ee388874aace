"""Which brokers hold the replicas of a new topic's partitions. Pure: brokers in, assignment out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.cluster.image import PartitionState
from tailrace.errors import ErrorCode, KafkaError

#: As in Kafka: more would be one change to the metadata that is too large.
_MAX_PARTITIONS_AT_ONCE = 10_000


def place_replicas(
    brokers: Sequence[int], partitions: int, replication_factor: int, *, first: int = 0
) -> tuple[PartitionState, ...]:
    """Spread partitions, numbered from the first, over brokers in turn; never two replicas on one broker."""
    if partitions <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"Number of partitions was set to an invalid non-positive value: {partitions}"
        )
    if partitions > _MAX_PARTITIONS_AT_ONCE:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
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
        for number in range(first, first + partitions)
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


def use_further_assignment(
    brokers: Sequence[int], assignment: Sequence[Sequence[int]], replication_factor: int
) -> tuple[PartitionState, ...]:
    """Take the replicas that a request asks for on behalf of new partitions of a topic that has others."""
    manual = "The manual partition assignment includes"
    for replicas in assignment:
        if not replicas:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{manual} an empty replica list.")
        for position, broker in enumerate(sorted(replicas)):
            if broker not in brokers:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{manual} broker {broker}, but no such broker is registered."
                )
            if broker in sorted(replicas)[:position]:
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{manual} the broker {broker} more than once.")
        if len(replicas) != replication_factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{manual} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
                f"partitions, which have {replication_factor} replica(s).",
            )
    return tuple(_fresh(tuple(replicas)) for replicas in assignment)


def _fresh(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(replicas, replicas, replicas[0], 0)
