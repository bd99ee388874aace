"""The only way for handlers to look up what a request names: topics, groups, transactional ids, configurations.

Invariant: with an authorizer, a request finds, changes or learns nothing that the authorizer does not allow. Without
one, each function costs one check of an attribute; `partition_finder`, for Produce and Fetch, costs it once per
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from tailrace.broker.services import Services
from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.shard import GroupShard
from tailrace.model import Lineage, TopicId
from tailrace.replication.partition import Partition
from tailrace.security.needs import Need
from tailrace.security.operations import CLUSTER_NAME, SUPPORTED, Operation, ResourceType, bits, refusal
from tailrace.security.principals import Principal
from tailrace.transactions.shard import TransactionShard

Item = TypeVar("Item")

#: The resource of each type of configuration, by the protocol's number: a topic, this broker, its loggers, client
#: metrics, a group.
_CONFIGURED = {
    2: ResourceType.TOPIC,
    4: ResourceType.CLUSTER,
    8: ResourceType.CLUSTER,
    16: ResourceType.CLUSTER,
    32: ResourceType.GROUP,
}


class Asker(Protocol):
    """The client that sends a request, and its address, as in the request's context."""

    @property
    def principal(self) -> Principal: ...

    @property
    def host(self) -> str: ...


# --- checks


def is_allowed(services: Services, asker: Asker, operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """True if a client may perform an operation on a resource."""
    authorizer = services.authorizer
    return authorizer is None or authorizer.allows(asker.principal, asker.host, operation, resource_type, name)


def is_allowed_on_cluster(services: Services, asker: Asker, operation: Operation) -> bool:
    """True if a client may perform an operation on the cluster."""
    return is_allowed(services, asker, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def is_allowed_on_any(services: Services, asker: Asker, operation: Operation, resource_type: ResourceType) -> bool:
    """True if there can be a resource on which a client may perform an operation."""
    authorizer = services.authorizer
    return authorizer is None or authorizer.allows_on_any(asker.principal, asker.host, operation, resource_type)


def require(services: Services, asker: Asker, operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Refuse a client that may not perform an operation on a resource."""
    if not is_allowed(services, asker, operation, resource_type, name):
        raise refusal(resource_type)


def refusal_of(services: Services, asker: Asker, needs: Sequence[Need], request: Any) -> KafkaError | None:
    """Return the error if the client lacks what the API needs on the cluster or on the request's group, else None."""
    for need in needs:
        if need.is_whole and not _is_met(services, asker, need, request):
            return refusal(need.resource_type)
    return None


def _is_met(services: Services, asker: Asker, need: Need, request: Any) -> bool:
    name = request.group_id if need.resource_type is ResourceType.GROUP else CLUSTER_NAME
    if is_allowed(services, asker, need.operation, need.resource_type, name):
        return True
    return need.alternative is not None and _is_met(services, asker, need.alternative, request)


def authorized_operations(services: Services, asker: Asker, resource_type: ResourceType, name: str) -> int:
    """Return the operations that a client may perform on a resource, as bits for a response."""
    return bits(
        operation
        for operation in SUPPORTED[resource_type]
        if is_allowed(services, asker, operation, resource_type, name)
    )


def operations_on_cluster(services: Services, asker: Asker) -> int:
    """Return the operations that a client may perform on the cluster; none if it may not describe the cluster."""
    if not is_allowed_on_cluster(services, asker, Operation.DESCRIBE):
        return 0
    return authorized_operations(services, asker, ResourceType.CLUSTER, CLUSTER_NAME)


# --- topics and partitions


def require_topic(services: Services, asker: Asker, operation: Operation, topic: str | TopicId) -> None:
    """Refuse a client that may not perform an operation on a topic, given by name or id."""
    if services.authorizer is None:
        return
    if not isinstance(topic, str):
        known = services.metadata.image.topics_by_id.get(topic)
        if known is None:
            # Without a name there is nothing to check.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        topic = known.name
    require(services, asker, operation, ResourceType.TOPIC, topic)


def find_topic(
    services: Services, asker: Asker, operation: Operation | None, topic: str | TopicId
) -> TopicImage | None:
    """Return the topic that a client names, or None if it does not exist; refuse if the operation is not allowed.

    A client without the right is refused whether or not the topic exists. No operation means that the request was
    already checked as a whole.
    """
    image = services.metadata.image
    if not isinstance(topic, str):
        found = image.topics_by_id.get(topic)
        name = None if found is None else found.name
    else:
        found, name = image.topics.get(topic), topic
    if operation is not None and name is not None and services.authorizer is not None:
        require(services, asker, operation, ResourceType.TOPIC, name)
    return found


def find_topic_by_lineage(
    services: Services, asker: Asker, operation: Operation | None, lineage: Lineage
) -> TopicImage | None:
    """Return the topic of a lineage, which brokers and archivers use, with the same checks as `find_topic`."""
    found = services.metadata.image.topics_by_lineage.get(lineage)
    if operation is not None and found is not None and services.authorizer is not None:
        require(services, asker, operation, ResourceType.TOPIC, found.name)
    return found


def visible_topics(
    services: Services, asker: Asker, image: ClusterImage, operation: Operation | None = Operation.DESCRIBE
) -> Iterable[TopicImage]:
    """Return all topics that a client may see; no operation means that the request was already checked as a whole."""
    topics = image.topics.values()
    return topics if operation is None else allowed_topics(services, asker, topics, lambda topic: topic.name, operation)


def allowed_topics(
    services: Services,
    asker: Asker,
    items: Iterable[Item],
    name: Callable[[Item], str],
    operation: Operation = Operation.DESCRIBE,
) -> Iterable[Item]:
    """Return the items whose topics a client may see, or may perform another operation on."""
    if services.authorizer is None:
        return items
    return [item for item in items if is_allowed(services, asker, operation, ResourceType.TOPIC, name(item))]


def find_partition(
    services: Services, asker: Asker, operation: Operation | None, topic: str | TopicId, number: int
) -> Partition:
    """Return the partition on this broker that a client names, for an operation; refuse if it is not here."""
    find = partition_finder(services, asker, operation, not isinstance(topic, str))
    return find(topic, number)


def partition_finder(
    services: Services, asker: Asker, operation: Operation | None, by_id: bool
) -> Callable[[Any, int], Partition]:
    """Return a function that finds the partitions of one request on this broker, for an operation, by topic name or id.

    No operation means that the request was already checked as a whole.
    """
    find: Callable[[Any, int], Partition] = services.partitions.find_by_id if by_id else services.partitions.find
    if services.authorizer is None or operation is None:
        return find
    wanted: Operation = operation
    allowed: dict[str | TopicId, None] = {}

    def find_allowed(topic: str | TopicId, number: int) -> Partition:
        if topic not in allowed:
            require_topic(services, asker, wanted, topic)
            allowed[topic] = None
        return find(topic, number)

    return find_allowed


def find_partition_by_lineage(
    services: Services, asker: Asker, operation: Operation | None, lineage: Lineage, number: int
) -> Partition:
    """Return the partition on this broker by its topic's lineage, for an operation; refuse if it is not here."""
    find_topic_by_lineage(services, asker, operation, lineage)
    return services.partitions.find_by_lineage(lineage, number)


# --- groups


def find_group(services: Services, asker: Asker, operation: Operation, group_id: str) -> GroupShard:
    """Return the shard of a group, for an operation; refuse if this broker does not coordinate it."""
    if services.authorizer is not None:
        require(services, asker, operation, ResourceType.GROUP, group_id)
    return services.groups.shard(group_id)


def find_named_group(services: Services, asker: Asker, operation: Operation, group_id: str) -> GroupShard:
    """Return the shard of a group like `find_group`; refuse the empty name, which no group has."""
    if not group_id and is_allowed(services, asker, operation, ResourceType.GROUP, group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    return find_group(services, asker, operation, group_id)


def find_partition_of_group(services: Services, asker: Asker, operation: Operation, group_id: str) -> Partition:
    """Return the partition with a group's offsets, for an operation on the group; refuse if it is not here."""
    if services.authorizer is not None:
        require(services, asker, operation, ResourceType.GROUP, group_id)
    return services.partitions.find(*services.groups.partition_of(group_id))


# --- transactional ids


def find_transactional_id(
    services: Services, asker: Asker, operation: Operation | None, transactional_id: str
) -> TransactionShard:
    """Return the shard of a transactional id, for an operation; refuse if this broker does not coordinate it.

    No operation means that the request was already checked as a whole.
    """
    if operation is not None and services.authorizer is not None:
        require(services, asker, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
    return services.transactions.shard(transactional_id)


def require_transactional_id(
    services: Services, asker: Asker, operation: Operation, transactional_id: str | None
) -> str:
    """Refuse a client that may not perform an operation on a transactional id, or that names none."""
    if not transactional_id:
        raise refusal(ResourceType.TRANSACTIONAL_ID)
    if services.authorizer is not None:
        require(services, asker, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
    return transactional_id


# --- configurations


def require_config(services: Services, asker: Asker, operation: Operation, config_type: int, name: str) -> None:
    """Refuse a client that may not perform an operation on a configuration, by the protocol's number for its type."""
    resource_type = _CONFIGURED.get(config_type)
    if resource_type is None or services.authorizer is None:
        return  # no other type has configurations
    require(services, asker, operation, resource_type, CLUSTER_NAME if resource_type is ResourceType.CLUSTER else name)
