"""Metadata, versions 0 to 13, flexible from 9: brokers, topics and leaders of partitions.

Odd: in version 0 an empty list of topics means all; from 1 on null means all and an empty list none. The request has
topic ids from version 10 on, but brokers use them only from 12 on. Only versions 8 to 10 have the cluster's authorized
operations. Version 13 adds a general error code.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, string, topic_uuid

#: The value of a field of authorized operations that was not requested.
AUTHORIZED_OPERATIONS_OMITTED = -(2**31)


class MetadataRequestTopic(Struct):
    """A requested topic, by name or by id."""

    topic_id: TopicId = topic_uuid(since=10)
    name: str | None = string(nullable_from=10)


class MetadataRequest(Message):
    """Requests the cluster's brokers and some or all topics."""

    API_KEY = ApiKey.METADATA
    MIN_VERSION = 0
    MAX_VERSION = 13
    FLEXIBLE_FROM = 9

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_from=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Struct):
    """A broker and its address."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable_from=1, default=None)


class MetadataResponsePartition(Struct):
    """A partition, its leader and its replicas."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(Kind.INT32)
    isr_nodes: list[int] = array(Kind.INT32)
    offline_replicas: list[int] = array(Kind.INT32, since=5)


class MetadataResponseTopic(Struct):
    """A topic with its partitions, or the error."""

    error_code: int = int16()
    name: str | None = string(nullable_from=12)
    topic_id: TopicId = topic_uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=AUTHORIZED_OPERATIONS_OMITTED)


class MetadataResponse(Message):
    """The cluster, as a client needs to see it."""

    API_KEY = ApiKey.METADATA
    MIN_VERSION = 0
    MAX_VERSION = 13
    FLEXIBLE_FROM = 9

    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable_from=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=AUTHORIZED_OPERATIONS_OMITTED)
    error_code: int = int16(since=13)
