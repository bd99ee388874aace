"""Truncation of the logs in one log directory: removes records that their leader does not have (ADR 12).

Invariants: a truncation is durable before anything is appended after it, so truncated records never reappear behind
others; before it starts, no recovery point is beyond its offset; once started it is completed, because a partly
truncated log accepts no records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.runtime.disk import DiskFullError, PassingStorageError, TooManyOpenFilesError
from tailrace.storage.log_home import RETRY_SECONDS, LogHome
from tailrace.storage.log_starts import LogStarts
from tailrace.storage.log_syncs import LogSyncs
from tailrace.storage.offset_checkpoints import OffsetCheckpoints
from tailrace.storage.partition_log import LogPast, PartitionLog
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.removals import Removals
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.storage")

#: Interval of the checks whether compaction has released a log that is to be truncated.
_CLEANING_LOOKED_AT_SECONDS = 0.05


class _Cut:
    """One truncation of one log: what is requested, and its progress."""

    __slots__ = ("is_syncing", "is_wanted", "offset", "past", "to_nothing")

    def __init__(
        self, offset: int, is_wanted: Callable[[], bool], *, to_nothing: bool = False, past: LogPast | None = None
    ) -> None:
        self.offset = offset
        self.is_wanted = is_wanted
        self.to_nothing = to_nothing
        self.past = past
        #: Whether it holds the log's sync slot: from the truncation of the files to the end of the sync.
        self.is_syncing = False

    @property
    def first_cut(self) -> int:
        """The offset from which records may be removed.

        A restart removes everything: recovery must check the log from its beginning.
        """
        return 0 if self.to_nothing else self.offset

    def work(self, log: PartitionLog, producers: ProducerState) -> Callable[[], list[Segment]]:
        """The call that truncates the files and returns the segments that left the log."""
        if self.to_nothing:
            return partial(log.restart_at, self.offset, self.past)
        return partial(log.truncate, self.offset, producers)


class LogCuts:
    """Carries out truncations, one at a time for each log."""

    def __init__(
        self, home: LogHome, syncs: LogSyncs, starts: LogStarts, checkpoints: OffsetCheckpoints, removals: Removals
    ) -> None:
        self._home = home
        self._syncs = syncs
        self._starts = starts
        self._checkpoints = checkpoints
        self._removals = removals

    def truncate(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool]
    ) -> asyncio.Task[KafkaError | None]:
        """Truncate a log to an offset, if that is still wanted once all is ready; the task returns the error, if any.

        When the task ends the records are gone for good, even after a crash. Until then nothing may be appended.
        """
        return self._start(log, _Cut(offset, is_wanted))

    def restart(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool], past: LogPast | None = None
    ) -> asyncio.Task[KafkaError | None]:
        """Empty a log and start it at an offset, with what is known of earlier records; otherwise like `truncate`."""
        return self._start(log, _Cut(offset, is_wanted, to_nothing=True, past=past))

    def _start(self, log: PartitionLog, cut: _Cut) -> asyncio.Task[KafkaError | None]:
        if log.is_being_cut:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{log.partition} is already being truncated; retry")
        self._checkpoints.limit(log, log.end_offset)
        log.is_being_cut = True
        return self._home.tasks.spawn(self._carry_out(log, cut), f"cut {log.partition}")

    async def _carry_out(self, log: PartitionLog, cut: _Cut) -> KafkaError | None:
        try:
            await self._cut(log, cut)
        except DiskFullError as error:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}: free space and retry")
        except TooManyOpenFilesError as error:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except KafkaError as error:
            return error
        except StorageError as error:
            if self._home.is_open(log):
                self._home.fail(error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        finally:
            self._checkpoints.lift_limit(log)
            log.is_being_cut = False
            if cut.is_syncing:
                self._syncs.free(log)
        return None

    async def _cut(self, log: PartitionLog, cut: _Cut) -> None:
        if not await self._starts.settle(log):
            # Otherwise the start on disk would be wrong without a recovery point that vouches for it.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "cannot write the log start to disk; retry")
        self._checkpoints.limit(log, cut.first_cut)
        await self._checkpoints.settle_limit(log)
        producers = ProducerState() if cut.to_nothing else await self._producers_below(log, cut.offset)
        await self._until_nobody_works_on(log, cut.first_cut)
        if not self._home.is_open(log) or self._home.is_closing or not cut.is_wanted():
            return
        # Until the end of the sync no other task may sync this log, and a shutdown waits.
        task = asyncio.current_task()
        assert task is not None
        self._syncs.occupy(log, task)
        cut.is_syncing = True
        start_offset = log.start_offset
        removed = await self._cut_files(log, cut.work(log, producers))
        await self._insist(log, lambda: self._syncs.sync_once(log), "sync it")
        self._removals.remove_later(log, removed)
        if log.start_offset < start_offset:
            # Recovery would take everything below the start on disk for deleted.
            await self._insist(log, self._checkpoints.save, "write its new start")
        await self._insist(log, lambda: self._checkpoints.was_cut(log), "write how far it is compacted")

    async def _producers_below(self, log: PartitionLog, offset: int) -> ProducerState:
        """The producers of a log truncated to `offset`; a search on disk is done in steps, between other tasks."""
        known = log.producers.below(offset)
        if known is not None:
            return known
        steps = log.find_producers(offset)
        while True:
            try:
                next(steps)
            except StopIteration as found:
                state: ProducerState = found.value
                return state
            await asyncio.sleep(0)

    async def _until_nobody_works_on(self, log: PartitionLog, offset: int) -> None:
        """Wait for a running sync and, if closed segments are to be truncated, for compaction to release the log."""
        while True:
            if (running := self._syncs.running_for(log)) is not None:
                await asyncio.wait([running])
            elif log.is_being_cleaned and offset < log.segments.bases[-1]:
                await asyncio.sleep(_CLEANING_LOOKED_AT_SECONDS)
            else:
                return

    async def _cut_files(self, log: PartitionLog, cut: Callable[[], list[Segment]]) -> list[Segment]:
        """Truncate the files of a log; retries until done, because a partly truncated log accepts no records."""
        while True:
            try:
                return cut()
            except TooManyOpenFilesError as error:
                logger.error("Cannot truncate %s yet, retrying: %s", log.partition, error, extra={"repeats": "not cut"})
                await asyncio.sleep(RETRY_SECONDS)

    async def _insist(self, log: PartitionLog, write: Callable[[], Awaitable[None]], doing: str) -> None:
        """Make a write that must follow a truncation, however long the disk refuses it."""
        while True:
            try:
                await write()
                return
            except PassingStorageError as error:
                logger.error("Truncated %s, but cannot %s yet; retrying: %s", log.partition, doing, error)
                await asyncio.sleep(RETRY_SECONDS)
