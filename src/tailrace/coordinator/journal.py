"""The journal of one shard: its records appended to its partition, and when they are committed.

Records of one operation are in one batch: all of them are in the log or none. Operations that come often, and of which
many come at once, share a batch with all others of the same turn of the loop. A batch of a transaction carries its
producer's id and epoch but no sequence numbers: the coordinator answers for the order. Where a write is
refused, clients get the errors that make them look for another coordinator or try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import TRANSACTIONAL_BIT
from tailrace.records.markers import build_marker
from tailrace.records.record import NewRecord, build_batch, build_keyed_batch
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.partition import Partition
from tailrace.runtime.clock import Clock
from tailrace.runtime.outcome import Outcome

#: A key, and its new value or None where there is none any more.
JournalRecord: TypeAlias = tuple[bytes, bytes | None]

_ELSEWHERE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
#: So many records of operations that share a batch fit into one, however long they are.
_TOGETHER = 200
_LATER = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT)


def as_coordinator_error(error: KafkaError) -> KafkaError:
    """What a client of the coordinator is told when the journal's partition refuses."""
    if error.code in _ELSEWHERE:
        return KafkaError(ErrorCode.NOT_COORDINATOR, error.message)
    if error.code in _LATER:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    return error


#: An operation that is written when the turn of the loop is over: its records, what is called then, and who is told.
_Waiting: TypeAlias = tuple[Sequence[JournalRecord], Callable[[], None], Outcome[None]]


class Journal:
    """Writes for one shard."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._leader_epoch = partition.leader_epoch
        self._last_offset = -1
        self._committed: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        # What shares the next batch, and whether it is known that the turn of the loop will end.
        self._waiting: list[_Waiting] = []
        self._waiting_records = 0
        self._awaits_end = False

    def begin(self) -> None:
        """Everything in the log was replayed, also what is not committed yet: nothing of it is told before it is."""
        self._last_offset = self._partition.log.end_offset - 1

    @property
    def last_offset(self) -> int:
        """The offset of the last record that was written."""
        return self._last_offset

    def append(self, records: Sequence[JournalRecord]) -> asyncio.Future[None]:
        """Write records; the future ends when they are committed. Nothing is written where this raises."""
        self.flush()
        return self._append(build_keyed_batch(records, self._clock.wall_ms()))

    def append_in_transaction(
        self, producer_id: int, producer_epoch: int, records: Sequence[JournalRecord]
    ) -> asyncio.Future[None]:
        """Write records in the name of a producer, as part of its transaction in this partition."""
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

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int
    ) -> asyncio.Future[None]:
        """Write the end of a producer's transaction in this partition."""
        self.flush()
        return self._append(
            build_marker(
                producer_id,
                producer_epoch,
                is_commit=is_commit,
                coordinator_epoch=coordinator_epoch,
                timestamp=self._clock.wall_ms(),
            )
        )

    def append_shared(self, records: Sequence[JournalRecord], take: Callable[[], None], written: Outcome[None]) -> None:
        """Write records when the turn of the loop ends, in one batch with others that came in it.

        `take` is called when they are in the log, before anything else is written there; `written` ends when they are
        committed, or cannot be, with an error for clients of a coordinator.
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
        """Write what waits for the end of the turn."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_records = self._waiting, [], 0
        try:
            together = [record for records, _, _ in waiting for record in records]
            written = self._append(build_keyed_batch(together, self._clock.wall_ms()))
        except Exception as error:
            _refuse(waiting, error)
            if isinstance(error, KafkaError):
                return
            raise
        for _, take, _ in waiting:
            take()
        if written.done():
            _pass_on(written, waiting)
        else:
            written.add_done_callback(lambda _: _pass_on(written, waiting))

    def _append(self, batch: bytearray) -> asyncio.Future[None]:
        if self._partition.leader_epoch != self._leader_epoch:
            # Somebody else may have led meanwhile, and written what this shard has not seen.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        try:
            self._last_offset = self._partition.append_own(memoryview(batch), ACKS_ALL).last_offset
        except KafkaError as error:
            raise as_coordinator_error(error) from error
        # With one replica all is committed at once: the same future, long since ended, says so every time.
        committed = self._committed
        if committed is not None and self._partition.is_acknowledged(self._last_offset):
            return committed
        written = self._partition.acknowledging.wait_for(self._last_offset)
        if written.done() and written.exception() is None:
            self._committed = written
        return written

    def settled(self) -> asyncio.Future[None]:
        """A future that ends when all that was written so far is committed: what is read then is no guess.

        Refused while another coordinator may have taken over: what it wrote is not known here.
        """
        if self._partition.may_be_deposed:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "This broker has not reached the coordination store for so long that another may coordinate by now.",
            )
        return self._partition.acknowledging.wait_until_committed(self._last_offset)


def _pass_on(written: asyncio.Future[None], waiting: Sequence[_Waiting]) -> None:
    """Tell all that share a batch what became of it."""
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
