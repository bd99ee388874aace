"""The syncs of the logs in one log directory: which logs are dirty, which are being synced, and when each is due.

Invariants: only one task at a time syncs a log, and none does while the log is truncated or its start is written;
whatever a failed sync was to make durable is owed again. Logs without waiters are synced together in one thread, so
that others are free for logs with waiters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from tailrace.errors import StorageError
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk, PassingStorageError, RemovedError
from tailrace.runtime.histogram import Histogram
from tailrace.storage.log_config import NEVER
from tailrace.storage.log_home import RETRY_SECONDS, LogHome
from tailrace.storage.partition_log import PartitionLog

logger = logging.getLogger("tailrace.storage")

#: From this many logs on, one sync of the whole file system is cheaper than one per log.
_SYNCED_ONE_BY_ONE = 32
#: How many logs a sync prepares or completes before other tasks run.
_SYNCED_PER_TURN = 200
#: Bounds in seconds for sync times, from a disk with its own cache to an overloaded one.
_SYNC_TIME_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Owed(NamedTuple):
    """What a sync is to make durable for one log."""

    log: PartitionLog
    topic_id: UUID | None
    is_written: bool
    target: int
    work: Callable[[], None]


class LogSyncs:
    """Schedules and runs the syncs of logs."""

    def __init__(self, home: LogHome, disk: Disk, clock: Clock, *, background_bytes: int, background_ms: int) -> None:
        #: How long syncs took; one sync may cover many logs.
        self.times = Histogram(_SYNC_TIME_BOUNDS)
        self._home = home
        self._disk = disk
        self._clock = clock
        self._background_bytes = background_bytes
        self._background_ms = background_ms
        self._dirty: dict[PartitionLog, None] = {}
        self._running: dict[PartitionLog, asyncio.Task[Any]] = {}
        # New logs, whose directory and identity become durable with their first sync.
        self._unsynced_identities: dict[PartitionLog, UUID] = {}

    def start(self) -> None:
        """Start the background syncs."""
        if self._background_ms >= 0:
            self._home.tasks.spawn(self._sync_periodically(), f"sync {self._home.path}")

    @property
    def running(self) -> list[asyncio.Task[Any]]:
        """The syncs in progress."""
        return list(self._running.values())

    def running_for(self, log: PartitionLog) -> asyncio.Task[Any] | None:
        """The sync of a log in progress, or another task that excludes a sync."""
        return self._running.get(log)

    def occupy(self, log: PartitionLog, task: asyncio.Task[Any]) -> None:
        """Exclude syncs of a log while a task works on it."""
        self._running[log] = task

    def free(self, log: PartitionLog) -> None:
        """Allow syncs of a log again."""
        del self._running[log]

    def owe_identity(self, log: PartitionLog, topic_id: UUID) -> None:
        """Let the next sync of a log also sync its identity: it is new, or was found after a crash."""
        self._unsynced_identities[log] = topic_id

    def is_owed(self, log: PartitionLog) -> bool:
        """Whether part of a log is not durable yet."""
        return not log.is_durable or log in self._unsynced_identities

    def forget(self, log: PartitionLog) -> None:
        """Drop what is owed to a removed log."""
        self._dirty.pop(log, None)
        self._unsynced_identities.pop(log, None)

    def flush_ms_lowered(self, log: PartitionLog) -> None:
        """Sync a dirty log within its new, shorter `flush.ms`."""
        if log in self._dirty:
            self._home.tasks.spawn(self._sync_in_time(log), f"flush {log.partition}")

    def sync_now(self, log: PartitionLog) -> None:
        """Sync a log that nobody uses yet, without yielding to other tasks."""
        target, work = self._sync_work(log)
        work()
        log.synced(target)

    def note_dirty(self, log: PartitionLog) -> None:
        """Schedule a sync: at once if promises wait for it or much is unsynced, otherwise within `flush.ms`."""
        if log not in self._dirty:
            self._dirty[log] = None
            if log.config.flush_ms < NEVER:
                self._home.tasks.spawn(self._sync_in_time(log), f"flush {log.partition}")
        if log.promised_offset < log.end_offset or log.unsynced_bytes >= self._background_bytes:
            self.sync_soon(log)

    def sync_soon(self, log: PartitionLog) -> None:
        """Sync a log as soon as a thread is free, unless a sync is in progress."""
        if log not in self._running and self._home.failure is None:
            self._running[log] = self._home.tasks.spawn(self._sync(log), f"sync {log.partition}")

    async def _sync(self, log: PartitionLog) -> None:
        """Sync one log until no promise waits for it; appends during a sync share the next one."""
        try:
            while not self._home.is_closing and self._home.is_open(log):
                try:
                    await self.sync_once(log)
                except PassingStorageError as error:
                    logger.error("Cannot sync %s, retrying: %s", log.partition, error, extra={"repeats": "not synced"})
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if self._home.is_open(log):
                    self._home.on_promise(log)
                if not log.needs_flush:
                    return
        except StorageError as error:
            if self._home.is_open(log):
                self._home.fail(error)
        finally:
            del self._running[log]

    async def _sync_together(self, logs: list[PartitionLog]) -> None:
        """Sync logs without waiters in one thread, so that others are free for logs with waiters."""
        try:
            await self.sync_once(*logs)
            for count, log in enumerate(logs, 1):
                if self._home.is_open(log):
                    self._home.on_promise(log)
                if count % _SYNCED_PER_TURN == 0:
                    await asyncio.sleep(0)
        except PassingStorageError as error:
            logger.error("Cannot sync logs in %s, retrying: %s", self._home.path, error)
        except StorageError as error:
            self._home.fail(error)
        finally:
            for log in logs:
                del self._running[log]
                if log.needs_flush and not self._home.is_closing:
                    self.sync_soon(log)

    async def sync_once(self, *logs: PartitionLog) -> None:
        """Sync the current content of logs in one thread; if that fails, all of it is owed again."""
        owed: list[_Owed] = []

        def sync_owed() -> None:
            is_synced = sum(one.is_written for one in owed) > _SYNCED_ONE_BY_ONE and self._disk.sync_all(
                self._home.path
            )
            for one in owed:
                if is_synced and one.is_written:
                    continue
                try:
                    one.work()
                except RemovedError:
                    continue  # the topic was deleted in between; sync the others

        began = self._clock.monotonic()
        try:
            for count, log in enumerate(logs, 1):
                if count % _SYNCED_PER_TURN == 0:
                    await asyncio.sleep(0)
                if self._home.is_open(log):
                    # Logs with files to write are done one by one. An identity was already written when its log was
                    # made.
                    is_written, topic_id = not log.has_files_to_write, self._unsynced_identities.get(log)
                    owed.append(_Owed(log, topic_id, is_written, *self._sync_work(log)))
                    self._dirty.pop(log, None)
            await self._disk.offload(sync_owed)
        except (StorageError, asyncio.CancelledError):
            # Owe again whatever this sync was to make durable.
            for one in owed:
                if self._home.is_open(one.log):
                    one.log.sync_failed()
                    self._dirty[one.log] = None
                    if one.topic_id is not None:
                        self._unsynced_identities[one.log] = one.topic_id
            raise
        self.times.observe(self._clock.monotonic() - began)
        for count, one in enumerate(owed, 1):
            one.log.synced(one.target)
            if count % _SYNCED_PER_TURN == 0:
                await asyncio.sleep(0)

    def _sync_work(self, log: PartitionLog) -> tuple[int, Callable[[], None]]:
        """The work of a sync and the offset it reaches: the segments and, the first time, the directory itself."""
        target, work = log.sync_work(with_identity=log in self._unsynced_identities)
        if self._unsynced_identities.pop(log, None) is None:
            return target, work

        def first_work() -> None:
            self._disk.sync_directory(self._home.path)
            work()

        return target, first_work

    async def _sync_in_time(self, log: PartitionLog) -> None:
        """Sync a log after its `flush.ms`, unless it was synced in the meantime."""
        await asyncio.sleep(log.config.flush_ms / 1000)
        while (running := self._running.get(log)) is not None:
            await asyncio.wait([running])
        if log in self._dirty:
            self.sync_soon(log)

    async def _sync_periodically(self) -> None:
        interval = max(0.01, self._background_ms / 1000)
        while self._home.failure is None:
            await asyncio.sleep(interval / 2)
            now = self._clock.monotonic()
            due = [log for log in self._dirty if log.dirty_since is not None and now - log.dirty_since >= interval / 2]
            logs = [log for log in due if log not in self._running]
            if logs:
                task = self._home.tasks.spawn(self._sync_together(logs), f"sync {len(logs)} logs in {self._home.path}")
                self._running.update(dict.fromkeys(logs, task))
                await asyncio.wait([task])
