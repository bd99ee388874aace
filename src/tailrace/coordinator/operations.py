"""The operations of a shard on its journal: writes, with or without a transaction, and reads.

An operation decides without `await` and hands over its records. They are in the log before they are replayed, and
replayed before the shard decides anything else. Its result is given once they are committed. If the journal refuses,
nothing has changed, and clients get an error that makes them retry or look for another coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tailrace.coordinator.journal import Journal, JournalRecord, as_coordinator_error
from tailrace.coordinator.shard import Producer, Shard
from tailrace.coordinator.timers import Timers
from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.markers import Marker
from tailrace.replication.waiters import refuse
from tailrace.runtime.outcome import Outcome

R = TypeVar("R")


class Operations:
    """The operations of one shard."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        self._journal = journal
        self._loop = loop
        self._shard: Shard | None = None
        self.timers = Timers(loop)
        #: The leader epoch of the shard's partition, which grows with every change of coordinators.
        self.leader_epoch = journal.leader_epoch
        #: Writes what waits for the end of the loop iteration; call it before a decision that depends on those records.
        self.flush: Callable[[], None] = journal.flush
        #: Writes records at the end of the loop iteration (`Journal.append_shared`). The caller's `take` replays them.
        self.write_shared: Callable[[Sequence[JournalRecord], Callable[[], None], Outcome[None]], None] = (
            journal.append_shared
        )

    def replay_into(self, shard: Shard) -> None:
        """Replay what is written into this shard."""
        self._shard = shard

    def end(self) -> None:
        """Stop the timers: another broker coordinates from now on."""
        self.timers.end()

    def write(self, records: Sequence[JournalRecord], result: R) -> R | asyncio.Future[R]:
        """Write and replay records; gives the result at once if they are already committed, else a future."""
        if not records:
            return result
        written = self._journal.append(records)
        self._replay(records, None)
        return self._when_committed(written, result)

    def keep(self, records: Sequence[JournalRecord]) -> None:
        """Write and replay records without waiting for them to be committed."""
        let_be(self.write(records, None))

    def write_in_transaction(
        self, producer_id: int, producer_epoch: int, records: Sequence[JournalRecord], result: R
    ) -> R | asyncio.Future[R]:
        """Write records that take effect once the producer's transaction commits, and replay them as such."""
        if not records:
            return result
        written = self._journal.append_in_transaction(producer_id, producer_epoch, records)
        self._replay(records, Producer(producer_id, producer_epoch, True))
        return self._when_committed(written, result)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, result: R, *, is_commit: bool, coordinator_epoch: int
    ) -> R | asyncio.Future[R]:
        """Write the marker that ends a producer's transaction, and replay it."""
        written = self._journal.append_marker(Marker(producer_id, producer_epoch, is_commit, coordinator_epoch))
        assert self._shard is not None
        self._shard.replay_marker(Producer(producer_id, producer_epoch, True), is_commit, self._journal.last_offset)
        return self._when_committed(written, result)

    def read(self, result: R) -> R | asyncio.Future[R]:
        """Give the result of a read once everything it may have seen is committed."""
        return self._when_committed(self._journal.settled(), result)

    def _replay(self, records: Sequence[JournalRecord], producer: Producer | None) -> None:
        assert self._shard is not None
        replay = self._shard.replay
        for offset, (key, value) in enumerate(records, self._journal.last_offset + 1 - len(records)):
            replay(key, value, offset, producer)

    def _when_committed(self, written: asyncio.Future[None], result: R) -> R | asyncio.Future[R]:
        if written.done() and written.exception() is None:
            return result
        future: asyncio.Future[R] = self._loop.create_future()

        def finish(done: asyncio.Future[None]) -> None:
            if future.done():
                return
            error = error_of(done)
            if error is None:
                future.set_result(result)
            else:
                # The client may have gone, in which case nobody retrieves this exception.
                refuse(future, as_coordinator_error(error) if isinstance(error, KafkaError) else error)

        written.add_done_callback(finish)
        return future


def error_of(done: asyncio.Future[Any]) -> BaseException | None:
    """The error a write ended with, or None; after a cancelled write another coordinator may have taken over."""
    return KafkaError(ErrorCode.NOT_COORDINATOR) if done.cancelled() else done.exception()


def pass_on(done: asyncio.Future[R], to: asyncio.Future[R]) -> None:
    """Complete a future with the outcome of another."""
    if to.done():
        return
    error = error_of(done)
    if error is None:
        to.set_result(done.result())
    else:
        refuse(to, error)


def let_be(result: asyncio.Future[Any] | None) -> None:
    """Do not wait for a write: if its records are never committed, some broker reloads the shard."""
    if result is not None:
        result.add_done_callback(lambda future: None if future.cancelled() else future.exception())
