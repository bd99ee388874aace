"""The offsets of the groups of one shard: the table that its records describe.

Committed offsets and those of open transactions are apart, and only the committed ones are shown to clients. Invariant:
in each partition the record that is last in the log wins, of those that are in effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.groups.committed_offset import CommittedOffset
from tailrace.groups.pending_offsets import PendingOffsets
from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue
from tailrace.model import ZERO_UUID, Lineage, TopicPartition


class Offsets:
    """The committed and the pending offsets of all groups."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        #: The offsets of open transactions.
        self.pending = PendingOffsets()
        # Many records name the same topic: replay shares one object for each lineage.
        self._lineages: dict[Lineage, Lineage] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._by_group.values())

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all committed offsets of a group."""
        return self._by_group.get(group_id, {})

    def groups(self) -> Iterator[str]:
        """Return the groups that have offsets, including those of open transactions."""
        return iter(list(dict.fromkeys([*self._by_group, *self.pending.by_group])))

    def has_any(self, group_id: str) -> bool:
        """True if a group has offsets, be they of open transactions."""
        return group_id in self._by_group or group_id in self.pending.by_group

    def has(self, group_id: str, partition: TopicPartition) -> bool:
        """True if a group has an offset in a partition, be it of an open transaction."""
        return partition in self.of_group(group_id) or partition in self.pending.of_group(group_id)

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions in which a group has offsets, including those of open transactions."""
        return list(dict.fromkeys([*self.of_group(group_id), *self.pending.of_group(group_id)]))

    # --- replay

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, log_offset: int, producer_id: int | None
    ) -> None:
        """Apply one record; a producer id means that it waits for the end of that producer's transaction."""
        group_id, partition = key.group, TopicPartition(key.topic, key.partition)
        if value is None:
            self._remove(group_id, partition)
            return
        lineage = None if value.topic_id == ZERO_UUID else self._lineages.setdefault(value.topic_id, value.topic_id)
        committed = CommittedOffset(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp, lineage
        )
        if producer_id is None:
            self.take_one(group_id, partition, committed)
        else:
            self.pending.add(producer_id, group_id, partition, committed, log_offset)

    def replay_marker(self, producer_id: int, is_commit: bool) -> None:
        """Apply the end of a producer's transaction; harmless if the producer has no pending offsets."""
        if not is_commit:
            self.pending.abort(producer_id)
            return
        for group_id, partition, committed in self.pending.commit(producer_id):
            self._by_group.setdefault(group_id, {})[partition] = committed

    def _remove(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self._by_group.get(group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._by_group[group_id]
        self.pending.remove(group_id, partition)

    def loaded(self) -> None:
        """Finish loading: all records of the log were replayed."""
        self._lineages.clear()

    def take(self, group_id: str, made: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Apply commits as the replay of their records would, without decoding what was just encoded."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            offsets = self._by_group[group_id] = {}
        offsets.update(made)
        if group_id in self.pending.by_group:
            for partition in made:
                self.pending.outdate(group_id, partition)

    def take_one(self, group_id: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Apply a single commit in the same way."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            offsets = self._by_group[group_id] = {}
        offsets[partition] = committed
        if group_id in self.pending.by_group:
            self.pending.outdate(group_id, partition)

    def identify(self, group_id: str, partition: TopicPartition, lineage: Lineage) -> None:
        """Note the topic of a commit whose record has none; the record stays as it is, and so does its place."""
        offsets = self._by_group[group_id]
        offsets[partition] = offsets[partition]._replace(lineage=lineage)
