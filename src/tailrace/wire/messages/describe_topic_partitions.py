"""DescribeTopicPartitions, version 0, flexible: topics and their partitions, page by page.

Odd: an empty list requests all topics. A full page ends with a cursor for the next request.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, optional_struct, string, topic_uuid
from tailrace.wire.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED


class TopicRequest(Struct):
    """A requested topic."""

    name: str = string()


class Cursor(Struct):
    """The start of a page."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message):
    """Requests a page of topics and partitions."""

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
    """A topic with its partitions, or the error."""

    error_code: int = int16()
    name: str | None = string(nullable_from=0)
    topic_id: TopicId = topic_uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_OMITTED)


class DescribeTopicPartitionsResponse(Message):
    """A page, and the start of the next one."""

    API_KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = optional_struct(Cursor)
