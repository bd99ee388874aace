"""Committed offsets of the groups of one shard: the table that its records describe, and their expiry.

A commit belongs to a topic's lineage, not to its name: it does not count for a later topic of the same name. Only
commits from before records had a lineage, or in the one record version with an expiry, have no lineage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue, encode_committed, encode_key, encode_value
from tailrace.model import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_UUID, Lineage, TopicPartition

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


class Offsets:
    """The committed offsets of all groups."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # Many records name the same topic: replay shares one object for each lineage.
        self._lineages: dict[Lineage, Lineage] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._by_group.values())

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all committed offsets of a group."""
        return self._by_group.get(group_id, {})

    def groups(self) -> Iterator[str]:
        """Return the groups that have committed offsets."""
        return iter(list(self._by_group))

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply one record."""
        partition = TopicPartition(key.topic, key.partition)
        if value is None:
            offsets = self._by_group.get(key.group)
            if offsets is not None:
                offsets.pop(partition, None)
                if not offsets:
                    del self._by_group[key.group]
            return
        lineage = None if value.topic_id == ZERO_UUID else self._lineages.setdefault(value.topic_id, value.topic_id)
        self._by_group.setdefault(key.group, {})[partition] = CommittedOffset(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp, lineage
        )

    def loaded(self) -> None:
        """Finish loading: all records of the log were replayed."""
        self._lineages.clear()

    def take(self, group_id: str, made: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Apply commits as the replay of their records would, without decoding what was just encoded."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            offsets = self._by_group[group_id] = {}
        offsets.update(made)

    def take_one(self, group_id: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Apply a single commit in the same way."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            offsets = self._by_group[group_id] = {}
        offsets[partition] = committed


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
