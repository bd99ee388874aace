"""The batches of one partition that need preparation before their append, and all batches that arrived after them.

Invariant: batches enter the log in order of arrival. The outcome of one batch does not affect the others. A batch of a
transaction enters it only if no marker has ended the transaction meanwhile: it would begin one that nobody ends. What
preparation means is the business of `preparation`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_OFFSET
from tailrace.records.batch import BatchHeader
from tailrace.replication.preparation import prepare, prepare_at_once
from tailrace.replication.waiters import refuse
from tailrace.storage.partition_log import Appended

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition


class _Turn(NamedTuple):
    """A batch that waits, and the future of its append."""

    data: bytearray
    header: BatchHeader
    #: The last marker of the producer when the batch arrived.
    marker_offset: int
    appended: asyncio.Future[Appended]


class AppendQueue:
    """The batches that wait for their turn."""

    __slots__ = ("_partition", "_turns")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._turns: deque[_Turn] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def append(self, data: memoryview, header: BatchHeader) -> Appended | asyncio.Future[Appended]:
        """Prepare and append a batch: now if it is small and nothing waits, otherwise in turn."""
        partition = self._partition
        if not self._turns:
            prepared = prepare_at_once(partition.log, data, header)
            if prepared is not None:
                return partition.append_now(*prepared)
        marker_offset = partition.log.producers.marker_offset(header.producer_id)
        turn = _Turn(bytearray(data), header, marker_offset, asyncio.get_running_loop().create_future())
        self._turns.append(turn)
        if len(self._turns) == 1:
            partition.directory.tasks.spawn(self._take_turns(), f"prepare batches of {partition.partition}")
        return turn.appended

    async def _take_turns(self) -> None:
        partition = self._partition
        log, offload = partition.log, partition.directory.offload
        while self._turns:
            data, header, marker_offset, appended = self._turns[0]
            try:
                prepared = await prepare(log, offload, partition.long_work, data, header)
                partition.require_served()
                if partition.refusal is not None:
                    log.producers.refused(header)
                    raise partition.refusal.with_traceback(None)
                if header.is_transactional:
                    self._require_unended(header, marker_offset)
                result = partition.append_now(*prepared)
                if not appended.done():
                    appended.set_result(result)
            except Exception as error:  # noqa: BLE001  passed on to the caller
                refuse(appended, error)
            if self._turns:  # else the partition was closed in between
                self._turns.popleft()

    def _require_unended(self, header: BatchHeader, marker_offset: int) -> None:
        """Refuse a batch if its transaction may have ended since it arrived; sent again, it is judged anew."""
        producers = self._partition.log.producers
        entry = producers.find(header.producer_id)
        if entry is not None and entry.transaction_start == NO_OFFSET and entry.changed_offset != marker_offset:
            producers.refused(header)
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "A transaction of the producer ended while the batch was being prepared: send the batch again.",
            )

    def close(self, reason: KafkaError) -> None:
        """Append nothing more, and fail every waiting append with `reason`."""
        for turn in self._turns:
            refuse(turn.appended, reason)
        self._turns.clear()
