"""OffsetCommit, versions 2 to 10, flexible from 8: commits a group's offsets.

Odd: versions 2 to 4 have a retention time, which the broker's configuration replaced. Version 6 adds the leader epoch,
7 static members. From 9 on the generation may be a member epoch of the newer group protocol, with its errors. Version
10 replaces topic names by ids; Kafka calls it stable from 4.2 on. A group that commits without members sends generation
-1 and an empty member id.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, int16, int32, int64, string, topic_uuid


class OffsetCommitRequestPartition(Struct):
    """The next offset to read from one partition."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    committed_metadata: str | None = string(nullable_from=0)


class OffsetCommitRequestTopic(Struct):
    """The partitions of one topic."""

    name: str = string(until=9)
    topic_id: TopicId = topic_uuid(since=10)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Message):
    """Commits a group's offsets."""

    API_KEY = ApiKey.OFFSET_COMMIT
    MIN_VERSION = 2
    MAX_VERSION = 10
    FLEXIBLE_FROM = 8

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(since=1, default=-1)
    member_id: str = string(since=1)
    group_instance_id: str | None = string(since=7, nullable_from=7, default=None)
    retention_time_ms: int = int64(since=2, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    """The result for one partition."""

    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    """The partitions of one topic."""

    name: str = string(until=9)
    topic_id: TopicId = topic_uuid(since=10)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Message):
    """The result for each offset."""

    API_KEY = ApiKey.OFFSET_COMMIT
    MIN_VERSION = 2
    MAX_VERSION = 10
    FLEXIBLE_FROM = 8

    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
