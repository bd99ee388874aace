"""DescribeTopicPartitions, version 0, flexible: topics and their partitions, page by page.

Odd: an empty list asks for all topics. A page that is full ends with a cursor, which the next request brings back.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, optional_struct, string, topic_uuid
from tailrace.wire.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED


class TopicRequest(Struct):
    """A topic asked for."""

    name: str = string()


class Cursor(Struct):
    """Where a page begins."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message):
    """Asks for a page of topics and partitions."""

    API_KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = optional_struct(Cursor)


class DescribeTopicPartitionsResponsePartition(Struct):
    """A partition, its leader and its replicas."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(Kind.INT32)
    isr_nodes: list[int] = array(Kind.INT32)
    eligible_leader_replicas: list[int] | None = array(Kind.INT32, nullable_from=0, null_by_default=True)
    last_known_elr: list[int] | None = array(Kind.INT32, nullable_from=0, null_by_default=True)
    offline_replicas: list[int] = array(Kind.INT32)


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic with partitions of it, or why there is none."""

    error_code: int = int16()
    name: str | None = string(nullable_from=0)
    topic_id: TopicId = topic_uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_OMITTED)


class DescribeTopicPartitionsResponse(Message):
    """A page, and where the next one begins."""

    API_KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = optional_struct(Cursor)
