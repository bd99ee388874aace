"""Deletes groups with their offsets: in slices if there are many, and only while nobody joins.

Offsets of open transactions are deleted too, so that no marker brings a deleted group back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tailrace.coordinator.journal import JournalRecord
from tailrace.coordinator.operations import Operations, pass_on
from tailrace.coordinator.turns import Turns
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.committed_offset import removal_record
from tailrace.groups.counters import GroupCounters
from tailrace.groups.group_table import GroupTable
from tailrace.groups.housekeeping import TOGETHER
from tailrace.model import TopicPartition
from tailrace.replication.waiters import refuse


class Deletions:
    """The groups of one shard that are being deleted."""

    def __init__(
        self,
        table: GroupTable,
        operations: Operations,
        remove: Callable[[str, Sequence[JournalRecord]], ErrorCode | asyncio.Future[ErrorCode]],
        loop: asyncio.AbstractEventLoop,
        counters: GroupCounters,
    ) -> None:
        self._table = table
        self._operations = operations
        # Writes the last records of a group together with its tombstones.
        self._remove = remove
        self._loop = loop
        self._counters = counters
        self._running: dict[str, tuple[Turns, asyncio.Future[ErrorCode]]] = {}

    def end(self, reason: KafkaError) -> None:
        """Stop all deletions, and answer those who wait with the reason."""
        for turns, deleted in self._running.values():
            turns.end()
            refuse(deleted, reason)
        self._running.clear()

    def delete(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Delete a group without members, with its offsets."""
        self._operations.flush()
        if self._table.describe(group_id).members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        if group_id in self._running:
            return self._running[group_id][1]
        partitions = self._table.offsets.partitions(group_id)
        if len(partitions) <= TOGETHER:
            return self._delete_rest(group_id, partitions)
        deleted: asyncio.Future[ErrorCode] = self._loop.create_future()
        turns = Turns(self._loop)
        self._running[group_id] = turns, deleted
        turns.begin(lambda: self._delete_in_turns(group_id, partitions, deleted))
        return deleted

    def _delete_in_turns(
        self, group_id: str, partitions: Sequence[TopicPartition], deleted: asyncio.Future[ErrorCode]
    ) -> Iterator[None]:
        """Delete offsets in slices, and the group with the last slice, unless somebody joins meanwhile."""
        first = 0
        try:
            while len(partitions) - first > TOGETHER:
                self._require_empty(group_id)
                self._delete_offsets(group_id, partitions[first : first + TOGETHER])
                first += TOGETHER
                yield
            self._require_empty(group_id)
            result = self._delete_rest(group_id, partitions[first:])
        except KafkaError as error:
            refuse(deleted, error)
        else:
            if isinstance(result, asyncio.Future):
                result.add_done_callback(partial(pass_on, to=deleted))
            elif not deleted.done():
                deleted.set_result(result)
        del self._running[group_id]

    def _require_empty(self, group_id: str) -> None:
        group = self._table.groups.get(group_id)
        if group is not None and group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def _delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        self._operations.flush()
        records = self._removals(group_id, partitions)
        self._operations.keep(records)
        self._counters.offset_deletions += len(records)

    def _delete_rest(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Delete a group together with its last offsets."""
        self._operations.flush()
        offsets = self._removals(group_id, partitions)
        kept = self._remove(group_id, offsets)
        self._counters.offset_deletions += len(offsets)
        return kept

    def _removals(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[JournalRecord]:
        """Return the records that remove what is left in these partitions; they end pending offsets too."""
        offsets = self._table.offsets
        return [removal_record(group_id, partition) for partition in partitions if offsets.has(group_id, partition)]
