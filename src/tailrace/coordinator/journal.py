"""The journal of one shard: appends the shard's records to its partition and reports when they are committed.

All records of one operation are in one batch: either all of them are in the log or none. Frequent operations share a
batch with the others of the same event loop iteration. A batch in a transaction carries its producer's id and epoch but
no sequence numbers, because the coordinator keeps the order. If a write is refused, clients get an error that makes
them retry or look for another coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import TRANSACTIONAL_BIT
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, build_batch, build_keyed_batch
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.partition import Partition
from tailrace.runtime.clock import Clock
from tailrace.runtime.outcome import Outcome
from tailrace.storage.partition_log import Appended

#: A key and its new value, or None to delete the key.
JournalRecord: TypeAlias = tuple[bytes, bytes | None]

_ELSEWHERE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
#: Maximum number of records in a shared batch.
_TOGETHER = 200
_LATER = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT)


def as_coordinator_error(error: KafkaError) -> KafkaError:
    """Convert an error of the journal's partition into one for clients of the coordinator."""
    if error.code in _ELSEWHERE:
        return KafkaError(ErrorCode.NOT_COORDINATOR, error.message)
    if error.code in _LATER:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    return error


#: An operation to write at the end of the loop iteration: its records, the call once they are in the log, its outcome.
_Waiting: TypeAlias = tuple[Sequence[JournalRecord], Callable[[], None], Outcome[None]]


class Journal:
    """Writes the records of one shard."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        #: The epoch in which this broker leads; the shard ends with it.
        self.leader_epoch = partition.leader_epoch
        self._last_offset = -1
        self._committed: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        # The operations that share the next batch, and whether the end of the loop iteration is already scheduled.
        self._waiting: list[_Waiting] = []
        self._waiting_records = 0
        self._awaits_end = False

    def begin(self) -> None:
        """The whole log is replayed, including records not yet committed; results wait until those are committed."""
        self._last_offset = self._partition.log.end_offset - 1

    @property
    def last_offset(self) -> int:
        """The offset of the last record written."""
        return self._last_offset

    def append(self, records: Sequence[JournalRecord]) -> asyncio.Future[None]:
        """Write records; the future completes when they are committed. If this raises, nothing was written."""
        self.flush()
        return self._append(build_keyed_batch(records, self._clock.wall_ms()))

    def append_in_transaction(
        self, producer_id: int, producer_epoch: int, records: Sequence[JournalRecord]
    ) -> asyncio.Future[None]:
        """Write records on behalf of a producer, as part of its transaction in this partition."""
        self.flush()
        now_ms = self._clock.wall_ms()
        return self._append(
            build_batch(
                [NewRecord(value, key, now_ms) for key, value in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                attributes=TRANSACTIONAL_BIT,
            )
        )

    def append_marker(self, marker: Marker) -> asyncio.Future[None]:
        """Write the marker that ends a producer's transaction in this partition."""
        self.flush()
        return self._written(lambda: self._partition.append_marker(marker))

    def append_shared(self, records: Sequence[JournalRecord], take: Callable[[], None], written: Outcome[None]) -> None:
        """Write records at the end of the loop iteration, in one batch with others of the same iteration.

        `take` is called once they are in the log, before anything else is written there. `written` completes when they
        are committed; if they cannot be, it gets an error meant for clients of a coordinator.
        """
        if not self._awaits_end:
            self._awaits_end = True
            self._loop.call_soon(self._turn_is_over)
        elif self._waiting_records + len(records) > _TOGETHER:
            self.flush()
        self._waiting.append((records, take, written))
        self._waiting_records += len(records)

    def _turn_is_over(self) -> None:
        self._awaits_end = False
        self.flush()

    def flush(self) -> None:
        """Write what is waiting for the end of the loop iteration."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_records = self._waiting, [], 0
        try:
            parts = self._write_together(waiting)
        except Exception as error:
            _refuse(waiting, error)
            raise
        for part, written in parts:
            if isinstance(written, KafkaError):
                _refuse(part, written)
            elif written.done():
                _pass_on(written, part)
            else:
                written.add_done_callback(partial(_pass_on, waiting=part))

    def _write_together(
        self, waiting: Sequence[_Waiting]
    ) -> list[tuple[Sequence[_Waiting], asyncio.Future[None] | KafkaError]]:
        """Write operations in one batch, or in several if one is too large for the topic; the result of each batch.

        A client with long names must not fail the others that share its batch.
        """
        together = [record for records, _, _ in waiting for record in records]
        try:
            written = self._append(build_keyed_batch(together, self._clock.wall_ms()))
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(waiting) == 1:
                return [(waiting, error)]
            middle = len(waiting) // 2
            return [*self._write_together(waiting[:middle]), *self._write_together(waiting[middle:])]
        for _, take, _ in waiting:
            take()
        return [(waiting, written)]

    def _append(self, batch: bytearray) -> asyncio.Future[None]:
        return self._written(lambda: self._partition.append_own(memoryview(batch), ACKS_ALL))

    def _written(self, append: Callable[[], Appended]) -> asyncio.Future[None]:
        if self._partition.leader_epoch != self.leader_epoch:
            # Another broker may have led in between and written records that this shard has not seen.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        try:
            self._last_offset = append().last_offset
        except KafkaError as error:
            raise as_coordinator_error(error) from error
        # With one replica every append is committed at once: reuse one completed future.
        committed = self._committed
        if committed is not None and self._partition.is_acknowledged(self._last_offset):
            return committed
        written = self._partition.acknowledging.wait_for(self._last_offset)
        if written.done() and written.exception() is None:
            self._committed = written
        return written

    def settled(self) -> asyncio.Future[None]:
        """A future that completes when everything written so far is committed, so that a read reports only that.

        Raises an error while another coordinator may have taken over, since its writes are not known here.
        """
        if self._partition.may_be_deposed:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "This broker has lost the coordination store; another broker may be the coordinator now.",
            )
        return self._partition.acknowledging.wait_until_committed(self._last_offset)


def _pass_on(written: asyncio.Future[None], waiting: Sequence[_Waiting]) -> None:
    """Complete the outcome of every operation that shared a batch."""
    error = KafkaError(ErrorCode.NOT_COORDINATOR) if written.cancelled() else written.exception()
    if error is not None:
        _refuse(waiting, error)
        return
    for _, _, outcome in waiting:
        if not outcome.done():
            outcome.set_result(None)


def _refuse(waiting: Sequence[_Waiting], error: BaseException) -> None:
    if isinstance(error, KafkaError):
        error = as_coordinator_error(error)
    for _, _, outcome in waiting:
        if not outcome.done():
            outcome.set_exception(error)
