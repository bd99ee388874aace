"""ConsumerGroupHeartbeat, versions 0 and 1, all flexible: the only request of the newer group protocol (KIP-848).

Odd: null or -1 means unchanged since the last heartbeat, so it is the default of most fields. The member epoch says
what the member wants: 0 joins, -1 leaves, -2 leaves temporarily as a static member. In version 0 the broker may choose
the member id, from 1 on the client does. Version 1 adds subscriptions by regular expression. A null assignment in the
response means that the member keeps what it has.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, optional_struct, string, topic_uuid


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: TopicId = topic_uuid()
    partitions: list[int] = array(Kind.INT32)


class ConsumerGroupHeartbeatRequest(Message):
    """Joins, stays or leaves, and reports what the member owns."""

    API_KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable_from=0, default=None)
    rack_id: str | None = string(nullable_from=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(Kind.STRING, nullable_from=0, null_by_default=True)
    subscribed_topic_regex: str | None = string(since=1, nullable_from=1, default=None)
    server_assignor: str | None = string(nullable_from=0, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_from=0, null_by_default=True)


class Assignment(Struct):
    """The member's target assignment."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Message):
    """The member's epoch, and its assignment if that has changed."""

    API_KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0, default=None)
    member_id: str | None = string(nullable_from=0, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = optional_struct(Assignment)
