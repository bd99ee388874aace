"""TxnOffsetCommit, versions 0 to 5, flexible from 3: commits a group's offsets as part of a producer's transaction.

Odd: from version 3 on the request names the member whose offsets these are, so that the group can fence it (KIP-447); a
producer that has no group metadata sends generation -1 and an empty member id. Version 5 has the fields of version 4:
it adds the group to the transaction, without an AddOffsetsToTxn before it (KIP-890).
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, int16, int32, int64, string


class TxnOffsetCommitRequestPartition(Struct):
    """The next offset to read from one partition."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=2, default=-1)
    committed_metadata: str | None = string(nullable_from=0)


class TxnOffsetCommitRequestTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Message):
    """Commits a group's offsets once the producer's transaction is committed."""

    API_KEY = ApiKey.TXN_OFFSET_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 3

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_from=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    """The result for one partition."""

    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Message):
    """The result for each offset."""

    API_KEY = ApiKey.TXN_OFFSET_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 3

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
