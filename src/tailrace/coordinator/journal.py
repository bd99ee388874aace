"""The journal of one shard: its records appended to its partition, and when they are committed.

Records of one operation are one batch: all of them are in the log or none. What cannot be written is refused with
the errors that make clients look for another coordinator or try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.record import build_keyed_batch
from tailrace.replication.partition import ACKS_ALL, Partition
from tailrace.runtime.clock import Clock

#: A key, and its new value or None where there is none any more.
JournalRecord: TypeAlias = tuple[bytes, bytes | None]

_ELSEWHERE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_LATER = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT)


def as_coordinator_error(error: KafkaError) -> KafkaError:
    """What a client of the coordinator is told when the journal's partition refuses."""
    if error.code in _ELSEWHERE:
        return KafkaError(ErrorCode.NOT_COORDINATOR, error.message)
    if error.code in _LATER:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    return error


class Journal:
    """Writes for one shard."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._leader_epoch = partition.leader_epoch
        self._last_offset = -1
        self._committed: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Everything in the log was replayed, also what is not committed yet: nothing of it is told before it is."""
        self._last_offset = self._partition.log.end_offset - 1

    def append(self, records: Sequence[JournalRecord]) -> asyncio.Future[None]:
        """Write records; the future ends when they are committed. Nothing is written where this raises."""
        if self._partition.leader_epoch != self._leader_epoch:
            # Somebody else may have led meanwhile, and written what this shard has not seen.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        batch = build_keyed_batch(records, self._clock.wall_ms())
        try:
            self._last_offset = self._partition.append_own(memoryview(batch), ACKS_ALL).last_offset
        except KafkaError as error:
            raise as_coordinator_error(error) from error
        # With one replica all is committed at once: the same future, long since ended, says so every time.
        committed = self._committed
        if committed is not None and self._partition.is_acknowledged(self._last_offset):
            return committed
        written = self._partition.wait_for(self._last_offset)
        if written.done() and written.exception() is None:
            self._committed = written
        return written

    def settled(self) -> asyncio.Future[None]:
        """A future that ends when all that was written so far is committed: what is read then is no guess."""
        return self._partition.wait_until_committed(self._last_offset)
