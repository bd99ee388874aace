"""ListOffsets, versions 1 to 11, flexible from 6: the offset of a timestamp, or one end of a log.

Odd: negative timestamps have special meanings. -1 is the log end (the high watermark, or the last stable offset for
read_committed), -2 the log start, -3 the record with the largest timestamp (from 7), -4 the local log start (from 8),
-5 the last archived offset (from 9), -6 the first offset that is not archived yet (from 11). Version 10 adds a timeout.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Struct):
    """One partition and the timestamp to search for."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()


class ListOffsetsTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Message):
    """Requests offsets by timestamp."""

    API_KEY = ApiKey.LIST_OFFSETS
    MIN_VERSION = 1
    MAX_VERSION = 11
    FLEXIBLE_FROM = 6

    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10)


class ListOffsetsPartitionResponse(Struct):
    """The offset found in one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)


class ListOffsetsTopicResponse(Struct):
    """The offsets of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Message):
    """The offsets found."""

    API_KEY = ApiKey.LIST_OFFSETS
    MIN_VERSION = 1
    MAX_VERSION = 11
    FLEXIBLE_FROM = 6

    throttle_time_ms: int = int32(since=2)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
