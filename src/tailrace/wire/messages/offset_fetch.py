"""OffsetFetch, versions 1 to 10, flexible from 6: a group's committed offsets.

Odd: up to version 7 a request is for one group and the response has its topics; from 8 on both have lists of groups, in
other fields and structs. From 2 on null topics request all offsets of the group. Version 7 can wait for offsets of open
transactions, 9 names the member of the newer group protocol, 10 replaces topic names by ids; Kafka calls it stable from
4.2 on. A partition without an offset has -1 and no error.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, int64, string, topic_uuid


class OffsetFetchRequestTopic(Struct):
    """Partitions of one topic, in a request for one group."""

    name: str = string(until=7)
    partition_indexes: list[int] = array(Kind.INT32, until=7)


class OffsetFetchRequestTopics(Struct):
    """Partitions of one topic, in a request for several groups."""

    name: str = string(since=8, until=9)
    topic_id: TopicId = topic_uuid(since=10)
    partition_indexes: list[int] = array(Kind.INT32, since=8)


class OffsetFetchRequestGroup(Struct):
    """One group, and the requesting member, if it is one."""

    group_id: str = string(since=8)
    member_id: str | None = string(since=9, nullable_from=9, default=None)
    member_epoch: int = int32(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, since=8, nullable_from=8)


class OffsetFetchRequest(Message):
    """Requests committed offsets."""

    API_KEY = ApiKey.OFFSET_FETCH
    MIN_VERSION = 1
    MAX_VERSION = 10
    FLEXIBLE_FROM = 6

    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable_from=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class OffsetFetchResponsePartition(Struct):
    """The committed offset of one partition, in a response for one group."""

    partition_index: int = int32(until=7)
    committed_offset: int = int64(until=7)
    committed_leader_epoch: int = int32(since=5, until=7, default=-1)
    metadata: str | None = string(until=7, nullable_from=0)
    error_code: int = int16(until=7)


class OffsetFetchResponseTopic(Struct):
    """The partitions of one topic, in a response for one group."""

    name: str = string(until=7)
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, until=7)


class OffsetFetchResponsePartitions(Struct):
    """The committed offset of one partition, in a response for several groups."""

    partition_index: int = int32(since=8)
    committed_offset: int = int64(since=8)
    committed_leader_epoch: int = int32(since=8, default=-1)
    metadata: str | None = string(since=8, nullable_from=8)
    error_code: int = int16(since=8)


class OffsetFetchResponseTopics(Struct):
    """The partitions of one topic, in a response for several groups."""

    name: str = string(since=8, until=9)
    topic_id: TopicId = topic_uuid(since=10)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, since=8)


class OffsetFetchResponseGroup(Struct):
    """The offsets of one group, or the error."""

    group_id: str = string(since=8)
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, since=8)
    error_code: int = int16(since=8)


class OffsetFetchResponse(Message):
    """Committed offsets."""

    API_KEY = ApiKey.OFFSET_FETCH
    MIN_VERSION = 1
    MAX_VERSION = 10
    FLEXIBLE_FROM = 6

    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)
