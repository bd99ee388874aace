"""Fetch, versions 4 to 18, flexible from 12: record batches of partitions, for consumers and followers.

Odd: version 7 adds fetch sessions, 10 allows zstd, 11 adds the client's rack, 12 truncation by epoch, 13 replaces topic
names by ids. The replica id is a field until 14; from 15 on it is in the tagged replica state, beside its broker epoch
(KIP-903). Version 17 adds directory ids, 18 the follower's high watermark; 14 and 16 only add errors.
"""

from __future__ import annotations

from uuid import UUID

from tailrace.model import TopicId
from tailrace.runtime.transport import Part
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import (
    Kind,
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    optional_struct,
    record_parts,
    string,
    struct,
    topic_uuid,
    uuid,
)


class ReplicaState(Struct):
    """The fetching follower and its incarnation."""

    replica_id: int = int32(since=15, default=-1)
    replica_epoch: int = int64(since=15, default=-1)


class FetchPartition(Struct):
    """The offset and the limit of a fetch from one partition."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid(since=17, tag=0)
    high_watermark: int = int64(since=18, default=2**63 - 1, tag=1)


class FetchTopic(Struct):
    """Partitions of one topic to fetch."""

    topic: str = string(until=12)
    topic_id: TopicId = topic_uuid(since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    """Partitions of one topic to remove from the fetch session."""

    topic: str = string(since=7, until=12)
    topic_id: TopicId = topic_uuid(since=13)
    partitions: list[int] = array(Kind.INT32, since=7)


class FetchRequest(Message):
    """Requests records, and waits for a while if there are few."""

    API_KEY = ApiKey.FETCH
    MIN_VERSION = 4
    MAX_VERSION = 18
    FLEXIBLE_FROM = 12

    cluster_id: str | None = string(since=12, nullable_from=12, default=None, tag=0)
    replica_id: int = int32(until=14, default=-1)
    replica_state: ReplicaState = struct(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(since=3, default=2**31 - 1)
    isolation_level: int = int8(since=4)
    session_id: int = int32(since=7)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


class EpochEndOffset(Struct):
    """Where the follower's log diverges from the leader's."""

    epoch: int = int32(since=12, default=-1)
    end_offset: int = int64(since=12, default=-1)


class LeaderIdAndEpoch(Struct):
    """The current leader, which the client should ask instead."""

    leader_id: int = int32(since=12, default=-1)
    leader_epoch: int = int32(since=12, default=-1)


class SnapshotId(Struct):
    """The snapshot to fetch first."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Struct):
    """An aborted transaction, whose records a read_committed reader skips."""

    producer_id: int = int64(since=4)
    first_offset: int = int64(since=4)


class PartitionData(Struct):
    """The records of one partition: a range of a file when sent, a view when received."""

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(since=4, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = optional_struct(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = optional_struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId | None = optional_struct(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, since=4, nullable_from=4)
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Part | None = record_parts()


class FetchableTopicResponse(Struct):
    """The partitions of one topic."""

    topic: str = string(until=12)
    topic_id: TopicId = topic_uuid(since=13)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Struct):
    """The address of a broker that is named as a leader."""

    node_id: int = int32(since=16)
    host: str = string(since=16)
    port: int = int32(since=16)
    rack: str | None = string(since=16, nullable_from=16, default=None)


class FetchResponse(Message):
    """Records of each requested partition."""

    API_KEY = ApiKey.FETCH
    MIN_VERSION = 4
    MAX_VERSION = 18
    FLEXIBLE_FROM = 12

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)
