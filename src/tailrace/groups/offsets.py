"""Committed offsets of the groups of one shard: a table that is the replay of its records, and what may leave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue, encode_committed, encode_key, encode_value
from tailrace.model import NO_LEADER_EPOCH, NO_TIMESTAMP, TopicPartition

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


class Offsets:
    """What every group has committed."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}

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
        self._by_group.setdefault(key.group, {})[partition] = CommittedOffset(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp
        )

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

    def expired(self, group_id: str, now_ms: int, retention_ms: int, empty_since_ms: int) -> list[TopicPartition]:
        """Offsets of an empty group that nobody came back for, counted from its last member or from the commit."""
        found = []
        for partition, committed in self.of_group(group_id).items():
            if committed.expire_timestamp != NO_TIMESTAMP:
                is_over = now_ms >= committed.expire_timestamp
            else:
                is_over = now_ms - max(empty_since_ms, committed.commit_timestamp) >= retention_ms
            if is_over:
                found.append(partition)
        return found


def commit_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> tuple[bytes, bytes]:
    """The record that commits an offset."""
    topic, number = partition
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp = committed
    if expire_timestamp == NO_TIMESTAMP:
        return encode_committed(group_id, topic, number, offset, leader_epoch, metadata, commit_timestamp)
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
