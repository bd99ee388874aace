"""ConsumerGroupDescribe, versions 0 and 1, all flexible: groups of the newer protocol with their members.

Odd: a member has two assignments, its current one and its target. Version 1 says whether a member uses the classic (0)
or the newer protocol (1).
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int8, int16, int32, string, struct, topic_uuid
from tailrace.wire.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED


class ConsumerGroupDescribeRequest(Message):
    """Requests groups by name."""

    API_KEY = ApiKey.CONSUMER_GROUP_DESCRIBE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    group_ids: list[str] = array(Kind.STRING)
    include_authorized_operations: bool = boolean()


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: TopicId = topic_uuid()
    topic_name: str = string()
    partitions: list[int] = array(Kind.INT32)


class Assignment(Struct):
    """A member's current or target assignment."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class Member(Struct):
    """One member."""

    member_id: str = string()
    instance_id: str | None = string(nullable_from=0, default=None)
    rack_id: str | None = string(nullable_from=0, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(Kind.STRING)
    subscribed_topic_regex: str | None = string(nullable_from=0, default=None)
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    member_type: int = int8(since=1, default=-1)


class DescribedGroup(Struct):
    """One group, or the error."""

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_OMITTED)


class ConsumerGroupDescribeResponse(Message):
    """The groups."""

    API_KEY = ApiKey.CONSUMER_GROUP_DESCRIBE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
