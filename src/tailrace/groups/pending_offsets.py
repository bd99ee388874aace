"""Offsets that producers committed in transactions which are still open, for all groups of one shard.

Only replay changes them. They take effect when the marker of their producer commits the transaction, whatever epoch the
marker has. In each partition the record that is last in the log decides, as compaction keeps that one: a pending offset
does not replace a commit that was written after it, whenever its own transaction ends. Invariant: both tables have the
same offsets and no empty tables. So a marker costs as much as its producer has pending offsets, and a group without any
costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tailrace.groups.committed_offset import CommittedOffset
from tailrace.model import NO_OFFSET, TopicPartition


class PendingOffset(NamedTuple):
    """An offset that waits for the end of its transaction, and the log offset of its record."""

    committed: CommittedOffset
    log_offset: int


class PendingPartition:
    """The pending offsets of a group in one partition."""

    __slots__ = ("_effective_from", "_last", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, PendingOffset] = {}
        self._last = NO_OFFSET
        # Records below this log offset are older than the commit that is in effect.
        self._effective_from = NO_OFFSET

    def __iter__(self) -> Iterator[CommittedOffset]:
        return iter([pending.committed for pending in self.producers.values()])

    def add(self, producer_id: int, pending: PendingOffset) -> None:
        """Add an offset; it replaces an earlier one of the same transaction."""
        self.producers[producer_id] = pending
        self._last = pending.log_offset

    def outdate(self) -> None:
        """A commit was written after all of these offsets, and is in effect."""
        self._effective_from = self._last + 1

    def take(self, pending: PendingOffset) -> bool:
        """A transaction was committed; return whether its offset takes effect."""
        if pending.log_offset < self._effective_from:
            return False
        self._effective_from = pending.log_offset
        return True


_NOTHING: Mapping[TopicPartition, PendingPartition] = MappingProxyType({})


class PendingOffsets:
    """The pending offsets of a shard: by producer, and by group and partition."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[tuple[str, TopicPartition], PendingOffset]] = {}
        #: The groups that have pending offsets.
        self.by_group: dict[str, dict[TopicPartition, PendingPartition]] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._by_producer.values())

    def of_group(self, group_id: str) -> Mapping[TopicPartition, PendingPartition]:
        """Return a group's pending offsets."""
        return self.by_group.get(group_id, _NOTHING)

    def add(
        self, producer_id: int, group_id: str, partition: TopicPartition, committed: CommittedOffset, log_offset: int
    ) -> None:
        """Add an offset; it replaces an earlier one of the same transaction."""
        pending = PendingOffset(committed, log_offset)
        self._by_producer.setdefault(producer_id, {})[group_id, partition] = pending
        partitions = self.by_group.setdefault(group_id, {})
        if partition not in partitions:
            partitions[partition] = PendingPartition()
        partitions[partition].add(producer_id, pending)

    def outdate(self, group_id: str, partition: TopicPartition) -> None:
        """A commit was written after all pending offsets of its partition, and is in effect."""
        found = self.of_group(group_id).get(partition)
        if found is not None:
            found.outdate()

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """The offsets of a partition were removed: no transaction brings them back."""
        removed = self.of_group(group_id).get(partition)
        if removed is None:
            return
        self._forget(group_id, partition)
        for producer_id in removed.producers:
            offsets = self._by_producer[producer_id]
            del offsets[group_id, partition]
            if not offsets:
                del self._by_producer[producer_id]

    def commit(self, producer_id: int) -> list[tuple[str, TopicPartition, CommittedOffset]]:
        """A producer's transaction was committed: return the offsets that take effect, by group and partition."""
        return [
            (group_id, partition, pending.committed)
            for group_id, partition, where, pending in self._end(producer_id)
            if where.take(pending)
        ]

    def abort(self, producer_id: int) -> None:
        """A producer's transaction was aborted."""
        for _ in self._end(producer_id):
            pass

    def _end(self, producer_id: int) -> Iterator[tuple[str, TopicPartition, PendingPartition, PendingOffset]]:
        for (group_id, partition), pending in self._by_producer.pop(producer_id, {}).items():
            where = self.by_group[group_id][partition]
            del where.producers[producer_id]
            if not where.producers:
                self._forget(group_id, partition)
            yield group_id, partition, where, pending

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        partitions = self.by_group[group_id]
        del partitions[partition]
        if not partitions:
            del self.by_group[group_id]
