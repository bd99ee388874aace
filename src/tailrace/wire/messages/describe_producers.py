"""DescribeProducers, version 0, flexible: the idempotent and transactional producers that a partition remembers."""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, int64, string


class TopicRequest(Struct):
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


class DescribeProducersRequest(Message):
    """Requests the producers of partitions."""

    API_KEY = ApiKey.DESCRIBE_PRODUCERS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    topics: list[TopicRequest] = array(TopicRequest)


class ProducerState(Struct):
    """The last write of one producer."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Struct):
    """The producers of one partition, or the error."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0, default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class TopicResponse(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message):
    """The producers of each partition."""

    API_KEY = ApiKey.DESCRIBE_PRODUCERS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)
