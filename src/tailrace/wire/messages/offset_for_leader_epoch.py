"""OffsetForLeaderEpoch, versions 2 to 4, flexible from 4: the end of a leader epoch in a log.

Odd: version 3 added the replica id. Its default is -2, for a reader that may see beyond the high watermark; consumers
send -1.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, int16, int32, int64, string


class OffsetForLeaderPartition(Struct):
    """One partition and the leader epoch to look up."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=2, default=-1)
    leader_epoch: int = int32()


class OffsetForLeaderTopic(Struct):
    """The partitions of one topic."""

    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Message):
    """Requests the ends of leader epochs."""

    API_KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH
    MIN_VERSION = 2
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    replica_id: int = int32(since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class EpochEndOffset(Struct):
    """The end of a leader epoch in one partition."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(since=1, default=-1)
    end_offset: int = int64(default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The epoch ends of one topic."""

    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Message):
    """The end of each epoch."""

    API_KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH
    MIN_VERSION = 2
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=2)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
