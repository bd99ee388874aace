"""Committed offsets of the groups of one shard: a table that is the replay of its records, and what may leave it.

A commit belongs to a topic, not to its name: it has the topic's lineage, and says nothing of another topic that has the
same name later. Only what was written before records had it, or in the one version that has an expiry, has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue, encode_committed, encode_key, encode_value
from tailrace.model import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_UUID, Lineage, TopicPartition

#: The offset of a partition for which nothing was committed.
NO_COMMITTED_OFFSET = -1


class CommittedOffset(NamedTuple):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    #: Only what very old clients asked for; otherwise the broker's retention counts.
    expire_timestamp: int = NO_TIMESTAMP
    #: The topic it was committed for; None where that was not written down.
    lineage: Lineage | None = None


class Offsets:
    """What every group has committed."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # One object for each lineage while records are replayed, of which many name the same topic.
        self._lineages: dict[Lineage, Lineage] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._by_group.values())

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Everything that a group has committed."""
        return self._by_group.get(group_id, {})

    def groups(self) -> Iterator[str]:
        """The groups that have committed something."""
        return iter(list(self._by_group))

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Take a record into account."""
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
        """All records of the log were replayed."""
        self._lineages.clear()

    def take(self, group_id: str, made: Mapping[TopicPartition, CommittedOffset]) -> None:
        """What the replay of the records of these commits would do, without decoding what was just encoded."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            offsets = self._by_group[group_id] = {}
        offsets.update(made)

    def take_one(self, group_id: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        """The same for a single commit."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            offsets = self._by_group[group_id] = {}
        offsets[partition] = committed


def is_expired(committed: CommittedOffset, now_ms: int, retention_ms: int, empty_since_ms: int) -> bool:
    """Whether nobody came back for an offset of an empty group, counted from its last member or from the commit."""
    if committed.expire_timestamp != NO_TIMESTAMP:
        return now_ms >= committed.expire_timestamp
    return now_ms - max(empty_since_ms, committed.commit_timestamp) >= retention_ms


def commit_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> tuple[bytes, bytes]:
    """The record that commits an offset."""
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
    """The record that takes a committed offset away."""
    return encode_key(OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)), None
