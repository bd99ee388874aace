"""ElectLeaders, versions 0 to 2, flexible from 2: has partitions elect leaders.

Odd: null asks for all partitions, and then those are left out of the answer that need no election. Version 0 knows
preferred leaders only, and has no error for the request as a whole.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int8, int16, int32, string


class TopicPartitions(Struct):
    """The partitions of one topic that shall elect."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


class ElectLeadersRequest(Message):
    """Asks for preferred leaders (election type 0), or for any where none in sync is alive (1)."""

    API_KEY = ApiKey.ELECT_LEADERS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_from=0)
    timeout_ms: int = int32(default=60_000)


class PartitionResult(Struct):
    """What became of one partition."""

    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)


class ReplicaElectionResult(Struct):
    """What became of the partitions of one topic."""

    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message):
    """What became of each partition."""

    API_KEY = ApiKey.ELECT_LEADERS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
