"""One committed offset: what it says, the records that commit and remove it, and when it expires.

A commit belongs to a topic's lineage, not to its name: it does not count for a later topic of the same name. Only
commits from before records had a lineage, or in the one record version with an expiry, have no lineage.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue, encode_committed, encode_key, encode_value
from tailrace.model import NO_LEADER_EPOCH, NO_TIMESTAMP, Lineage, TopicPartition

#: The offset of a partition without a commit.
NO_COMMITTED_OFFSET = -1


class CommittedOffset(NamedTuple):
    """A committed offset of a group in one partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    #: Set only by very old clients; otherwise the broker's retention applies.
    expire_timestamp: int = NO_TIMESTAMP
    #: The topic it was committed for; None if the record has none.
    lineage: Lineage | None = None


def is_expired(committed: CommittedOffset, now_ms: int, retention_ms: int, empty_since_ms: int) -> bool:
    """True if an offset of an empty group has expired, counted from when the last member left or from the commit."""
    if committed.expire_timestamp != NO_TIMESTAMP:
        return now_ms >= committed.expire_timestamp
    return now_ms - max(empty_since_ms, committed.commit_timestamp) >= retention_ms


def commit_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> tuple[bytes, bytes]:
    """Return the record that commits an offset."""
    topic, number = partition
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, lineage = committed
    if expire_timestamp == NO_TIMESTAMP:
        return encode_committed(group_id, topic, number, offset, leader_epoch, metadata, commit_timestamp, lineage)
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
    )
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=number)), encode_value(value)


def removal_record(group_id: str, partition: TopicPartition) -> tuple[bytes, None]:
    """Return the record that removes a committed offset."""
    return encode_key(OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)), None
