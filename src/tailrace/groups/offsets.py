"""Committed offsets of the groups of one shard: the table that its records describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.groups.committed_offset import CommittedOffset
from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue
from tailrace.model import ZERO_UUID, Lineage, TopicPartition


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
