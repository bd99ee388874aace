"""Produce, versions 3 to 13, flexible from 9: record batches for partitions.

Odd: versions 0 to 2 had older message formats and cannot be decoded, but are advertised, because some clients turn off
compression if the minimum is 3. From version 7 on batches may use zstd. Version 8 adds errors of single records, 10 the
new leader (KIP-951), 13 replaces topic names by ids. With acks=0 there is no response.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    optional_struct,
    record_data,
    string,
    topic_uuid,
)


class PartitionProduceData(Struct):
    """The batch for one partition."""

    index: int = int32()
    records: Buffer | None = record_data()


class TopicProduceData(Struct):
    """The batches for one topic."""

    name: str = string(until=12)
    topic_id: TopicId = topic_uuid(since=13)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Message):
    """Appends record batches."""

    API_KEY = ApiKey.PRODUCE
    MIN_VERSION = 3
    MAX_VERSION = 13
    FLEXIBLE_FROM = 9

    transactional_id: str | None = string(since=3, nullable_from=3, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    """A record that made its batch fail."""

    batch_index: int = int32(since=8)
    batch_index_error_message: str | None = string(since=8, nullable_from=8, default=None)


class LeaderIdAndEpoch(Struct):
    """The current leader, which the client should ask instead."""

    leader_id: int = int32(since=10, default=-1)
    leader_epoch: int = int32(since=10, default=-1)


class PartitionProduceResponse(Struct):
    """The offset of the batch of one partition, or the error."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(since=2, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(since=8, nullable_from=8, default=None)
    current_leader: LeaderIdAndEpoch | None = optional_struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Struct):
    """The results for one topic."""

    name: str = string(until=12)
    topic_id: TopicId = topic_uuid(since=13)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    """The address of a broker that is named as a leader."""

    node_id: int = int32(since=10)
    host: str = string(since=10)
    port: int = int32(since=10)
    rack: str | None = string(since=10, nullable_from=10, default=None)


class ProduceResponse(Message):
    """The result for each batch."""

    API_KEY = ApiKey.PRODUCE
    MIN_VERSION = 3
    MAX_VERSION = 13
    FLEXIBLE_FROM = 9

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
