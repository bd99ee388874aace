"""The one place where a request meets what it names: topics, partitions, groups and configurations, for an operation.

Keeps one invariant: where there is an authorizer, nothing is found, changed or told that it does not allow. Handlers
look up what a client named through these functions alone. Without an authorizer they cost one check of an attribute;
`partition_finder`, which Produce and Fetch use, costs it once for a whole request.
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

Item = TypeVar("Item")

#: What each type of configuration belongs to, by the protocol's number: a topic, this broker, its loggers, metrics of
#: clients, a group.
_CONFIGURED = {
    2: ResourceType.TOPIC,
    4: ResourceType.CLUSTER,
    8: ResourceType.CLUSTER,
    16: ResourceType.CLUSTER,
    32: ResourceType.GROUP,
}


class Asker(Protocol):
    """Who asks, and from where; the context of a request says it."""

    @property
    def principal(self) -> Principal: ...

    @property
    def host(self) -> str: ...


# --- whether


def is_allowed(services: Services, asker: Asker, operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """Whether a client may do an operation to a resource."""
    authorizer = services.authorizer
    return authorizer is None or authorizer.allows(asker.principal, asker.host, operation, resource_type, name)


def is_allowed_on_cluster(services: Services, asker: Asker, operation: Operation) -> bool:
    """Whether a client may do an operation to the cluster."""
    return is_allowed(services, asker, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def is_allowed_on_any(services: Services, asker: Asker, operation: Operation, resource_type: ResourceType) -> bool:
    """Whether there can be a resource that a client may do an operation to."""
    authorizer = services.authorizer
    return authorizer is None or authorizer.allows_on_any(asker.principal, asker.host, operation, resource_type)


def require(services: Services, asker: Asker, operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Refuse a client that may not do an operation to a resource."""
    if not is_allowed(services, asker, operation, resource_type, name):
        raise refusal(resource_type)


def refusal_of(services: Services, asker: Asker, needs: Sequence[Need], request: Any) -> KafkaError | None:
    """Why a request is refused as a whole, if it is: it lacks what its API needs on the cluster or on its group."""
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
    """What a client may do to a resource, as the bits that responses carry."""
    return bits(
        operation
        for operation in SUPPORTED[resource_type]
        if is_allowed(services, asker, operation, resource_type, name)
    )


def operations_on_cluster(services: Services, asker: Asker) -> int:
    """What a client is told that it may do to the cluster; nothing if it may not describe it."""
    if not is_allowed_on_cluster(services, asker, Operation.DESCRIBE):
        return 0
    return authorized_operations(services, asker, ResourceType.CLUSTER, CLUSTER_NAME)


# --- topics and partitions


def require_topic(services: Services, asker: Asker, operation: Operation, topic: str | TopicId) -> None:
    """Refuse a client that may not do an operation to a topic, named by name or by id."""
    if services.authorizer is None:
        return
    if not isinstance(topic, str):
        known = services.metadata.image.topics_by_id.get(topic)
        if known is None:
            # Nobody can say by which name it is allowed or not.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        topic = known.name
    require(services, asker, operation, ResourceType.TOPIC, topic)


def find_topic(
    services: Services, asker: Asker, operation: Operation | None, topic: str | TopicId
) -> TopicImage | None:
    """The topic that a client named by name or by id, if there is one and the operation is allowed, else a refusal.

    A client that may not do it is refused whether or not there is a topic of that name. Without an operation the
    request was checked as a whole.
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
    """The topic of a lineage, which brokers and archivers name; as `find_topic` finds those that clients name."""
    found = services.metadata.image.topics_by_lineage.get(lineage)
    if operation is not None and found is not None and services.authorizer is not None:
        require(services, asker, operation, ResourceType.TOPIC, found.name)
    return found


def visible_topics(
    services: Services, asker: Asker, image: ClusterImage, operation: Operation | None = Operation.DESCRIBE
) -> Iterable[TopicImage]:
    """All topics that a client may know of; without an operation the request was checked as a whole."""
    topics = image.topics.values()
    return topics if operation is None else allowed_topics(services, asker, topics, lambda topic: topic.name, operation)


def allowed_topics(
    services: Services,
    asker: Asker,
    items: Iterable[Item],
    name: Callable[[Item], str],
    operation: Operation = Operation.DESCRIBE,
) -> Iterable[Item]:
    """Those of some items whose topics a client may know of, or do another operation to."""
    if services.authorizer is None:
        return items
    return [item for item in items if is_allowed(services, asker, operation, ResourceType.TOPIC, name(item))]


def find_partition(
    services: Services, asker: Asker, operation: Operation | None, topic: str | TopicId, number: int
) -> Partition:
    """The partition on this broker that a client named, for an operation; or why it is not here."""
    find = partition_finder(services, asker, operation, not isinstance(topic, str))
    return find(topic, number)


def partition_finder(
    services: Services, asker: Asker, operation: Operation | None, by_id: bool
) -> Callable[[Any, int], Partition]:
    """Finds the partitions on this broker that one request names, for an operation, by name or by id of their topics.

    Without an operation the request was checked as a whole.
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
    """The partition on this broker of the topic of a lineage, for an operation; or why it is not here."""
    find_topic_by_lineage(services, asker, operation, lineage)
    return services.partitions.find_by_lineage(lineage, number)


# --- groups


def find_group(services: Services, asker: Asker, operation: Operation, group_id: str) -> GroupShard:
    """The shard that has a group, for an operation; or why this broker cannot be asked for it."""
    if services.authorizer is not None:
        require(services, asker, operation, ResourceType.GROUP, group_id)
    return services.groups.shard(group_id)


def find_named_group(services: Services, asker: Asker, operation: Operation, group_id: str) -> GroupShard:
    """The shard that has a group, as `find_group` finds it; no group has an empty name."""
    if not group_id and is_allowed(services, asker, operation, ResourceType.GROUP, group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    return find_group(services, asker, operation, group_id)


# --- configurations


def require_config(services: Services, asker: Asker, operation: Operation, config_type: int, name: str) -> None:
    """Refuse a client that may not do an operation to a configuration, by the protocol's number for its type."""
    resource_type = _CONFIGURED.get(config_type)
    if resource_type is None or services.authorizer is None:
        return  # nothing of another type has a configuration
    require(services, asker, operation, resource_type, CLUSTER_NAME if resource_type is ResourceType.CLUSTER else name)
