"""Operations and the types of resources they are done to, with Kafka's numbers, and which operation fits which type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType

from tailrace.errors import ErrorCode, KafkaError


class Operation(IntEnum):
    """What somebody wants to do, as the protocol numbers it."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """What it is done to, as the protocol numbers it."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


#: There is one cluster, and this is its name as a resource.
CLUSTER_NAME = "kafka-cluster"

#: The operations that each type of resource has.
SUPPORTED: Mapping[ResourceType, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        ResourceType.GROUP: (
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        ),
        ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    }
)

_REFUSALS: Mapping[ResourceType, tuple[ErrorCode, str]] = MappingProxyType(
    {
        ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
        ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
        ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
        ResourceType.TRANSACTIONAL_ID: (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Transactional Id authorization failed.",
        ),
    }
)


def bits(operations: Iterable[Operation]) -> int:
    """Operations as responses carry them: one bit for each, at its number."""
    return sum(1 << operation for operation in operations)


def refusal(resource_type: ResourceType) -> KafkaError:
    """The refusal of an operation on a resource of a type, as Kafka words it."""
    return KafkaError(*_REFUSALS[resource_type])
