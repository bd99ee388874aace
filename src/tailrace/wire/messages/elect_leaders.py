"""ElectLeaders, versions 0 to 2, flexible from 2: elects leaders of partitions.

Odd: null requests all partitions, and the response then omits those that need no election. Version 0 supports only
preferred leaders, and has no error for the whole request.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int8, int16, int32, string


class TopicPartitions(Struct):
    """Partitions of one topic for an election."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


class ElectLeadersRequest(Message):
    """Requests preferred leaders (election type 0), or any live replica if none is in sync (1)."""

    API_KEY = ApiKey.ELECT_LEADERS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_from=0)
    timeout_ms: int = int32(default=60_000)


class PartitionResult(Struct):
    """The result for one partition."""

    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)


class ReplicaElectionResult(Struct):
    """The results for one topic."""

    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message):
    """The result for each partition."""

    API_KEY = ApiKey.ELECT_LEADERS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
