"""One log directory: the partition logs in it, and whether its disk works.

A disk error takes the whole directory offline, with a critical log line: nothing in it is served or acknowledged any
more. A full disk or a lack of file descriptors only refuses the current operation. Other directories are not affected.
Threads access a log's directory through its handle, never by name, because the event loop renames it when the topic is
deleted. The clean shutdown marker exists only between a clean stop and the next start. Operations on logs have their
own modules: `log_syncs`, `offset_checkpoints`, `log_starts`, `log_cuts`, `segment_swaps` and `removals`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from uuid import UUID

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import PassingStorageError, RemovedError, TooManyOpenFilesError
from tailrace.runtime.tasks import Tasks
from tailrace.storage import directory_identity
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN, clean_shutdown_marker, epoch_in_marker
from tailrace.storage.directory_names import is_deleted, partition_named
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_cuts import LogCuts
from tailrace.storage.log_home import RETRY_SECONDS
from tailrace.storage.log_starts import LogStarts
from tailrace.storage.log_syncs import LogSyncs
from tailrace.storage.offset_checkpoints import OffsetCheckpoints
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadata,
    read_metadata,
    read_topic_id,
    write_metadata,
)
from tailrace.storage.recovery import open_log
from tailrace.storage.removals import Removals
from tailrace.storage.segment import LOG_SUFFIX
from tailrace.storage.segment_swaps import SegmentSwaps

logger = logging.getLogger("tailrace.storage")

T = TypeVar("T")


class LogDirectory:
    """A directory of partition logs, which fail together."""

    def __init__(self, path: str, runtime: Runtime, *, background_bytes: int, background_ms: int) -> None:
        self.path = path
        self.failure: StorageError | None = None
        #: Identifies the directory wherever it is mounted; set by `identify`.
        self.directory_id = ""
        #: Called when a log may promise more than before.
        self.on_promise: Callable[[PartitionLog], None] = _ignore
        #: Called once when the directory goes offline.
        self.on_failure: Callable[[LogDirectory], None] = _ignore_failure
        self._runtime = runtime
        self._disk = disk = runtime.disk
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self.tasks = Tasks(self._background_failed)
        self.syncs = LogSyncs(self, disk, runtime.clock, background_bytes=background_bytes, background_ms=background_ms)
        self.checkpoints = OffsetCheckpoints(self, disk)
        self.removals = Removals(self, disk, runtime.random, self.checkpoints)
        self.starts = LogStarts(self, disk, self.syncs, self.checkpoints)
        self.cuts = LogCuts(self, self.syncs, self.starts, self.checkpoints, self.removals)
        self.swaps = SegmentSwaps(self, disk, self.checkpoints, self.removals)
        #: Partitions whose directory this process created but whose log it could not open yet because of the disk.
        self._being_made: dict[TopicPartition, None] = {}
        self.stopped_cleanly = False
        #: The broker epoch of the last clean stop; -1 if it was not clean or the epoch is unknown.
        self.stopped_in_epoch = -1
        #: The current broker epoch, for the next clean stop.
        self.broker_epoch = -1
        #: Whether it is closing and starts no new work.
        self.is_closing = False
        self._is_started = False
        self._has_unrecovered = False

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._logs.values()))

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """The open logs, by partition."""
        return self._logs

    @property
    def log_count(self) -> int:
        """The number of open logs."""
        return len(self._logs)

    def is_open(self, log: PartitionLog) -> bool:
        """Whether a log is still the open log of its partition here."""
        return self._logs.get(log.partition) is log

    def holds(self, log: PartitionLog) -> bool:
        """Whether a log is still the open log of its partition here, and may be worked on."""
        return (
            self._logs.get(log.partition) is log
            and self.failure is None
            and not self.is_closing
            and not log.is_being_cut
        )

    # --- opening and closing

    def open(self) -> None:
        """Read the checkpoints and durably remove the clean shutdown marker, before anything is written."""
        disk = self._disk
        disk.make_directory(self.path)
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        found = disk.read_file(marker)
        self.stopped_cleanly = found is not None
        self.stopped_in_epoch = self.broker_epoch = epoch_in_marker(found)
        if not self.stopped_cleanly:
            self._make_durable()
        self.checkpoints.read()
        disk.remove(marker)
        disk.sync_directory(self.path)

    def _make_durable(self) -> None:
        """Sync everything that a killed process left in the page cache.

        Otherwise a power failure could bring back what it truncated or removed, behind records appended since.
        """
        disk = self._disk
        partitions = [f"{self.path}/{name}" for name in disk.list(self.path) if partition_named(name) is not None]
        if not partitions or disk.sync_all(self.path):
            return
        for directory in partitions:
            for name in disk.list(directory):
                if name.endswith(LOG_SUFFIX):
                    disk.open(f"{directory}/{name}").sync()
            disk.sync_directory(directory)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Refuse a directory of another broker or cluster, or of a newer version; mark a new one as ours."""
        self.directory_id = directory_identity.identify(
            self._disk, self.path, self._runtime.random, broker_id, cluster_id
        )

    def partition_directories(self) -> list[TopicPartition]:
        """Every partition directory; a directory without partition metadata is left alone."""
        found = []
        for name in self._disk.list(self.path):
            if is_deleted(name):
                self._disk.remove(f"{self.path}/{name}")
                continue
            partition = partition_named(name)
            if partition is not None and self._disk.exists(f"{self.path}/{name}/{PARTITION_METADATA}"):
                found.append(partition)
        return found

    def start(self) -> None:
        """All logs are open: start background syncs."""
        self._is_started = True
        self.syncs.start()

    async def close(self) -> None:
        """Sync everything and write the marker that lets the next start skip recovery."""
        self.is_closing = True
        # A cancelled sync could still run in its thread beside the last one.
        # The same holds for a cleaned segment that is being swapped in.
        for task in [*self.syncs.running, *self.swaps.running]:
            await asyncio.wait([task])
        await self.tasks.cancel()
        if self.failure is not None:
            return
        try:
            await self.syncs.sync_once(*[log for log in self if self.syncs.is_owed(log)])
            for log in self:
                log.close()
            await self.checkpoints.save()
            # A log that was not opened since the last crash still needs recovery.
            if (self.stopped_cleanly or self._is_started) and not self._has_unrecovered:
                marker = f"{self.path}/{CLEAN_SHUTDOWN}"
                content = clean_shutdown_marker(self.broker_epoch)
                await self._disk.offload(lambda: self._disk.replace_file(marker, content))
        except StorageError as error:
            self.fail(error)

    # --- logs

    def open_partition(self, partition: TopicPartition, topic_id: UUID, config: LogConfig) -> PartitionLog:
        """Open or create the log of a partition of a topic; a directory of another topic is set aside."""
        directory = f"{self.path}/{partition}"
        disk = self._disk
        try:
            if self._find_owned(partition, topic_id):
                found = read_metadata(disk, directory)
                first_offset = None if found is None else found[1]
            else:
                self._forget(partition)
                if self.checkpoints.has_outdated(partition):
                    # Old entries must be gone before the first record. Rare: removing a partition clears them.
                    self.checkpoints.write_now()
                self._being_made[partition] = None
                disk.make_directory(directory)
                first_offset = 0
                write_metadata(disk.directory(directory), topic_id, first_offset, sync=False)
            log = open_log(
                partition,
                directory,
                config,
                disk,
                self._runtime.clock,
                stopped_cleanly=self.stopped_cleanly,
                recovery_point=self.checkpoints.recovery_point_of(partition),
                log_start_offset=self.checkpoints.start_of(partition),
                metadata=PartitionMetadata(disk.directory(directory), topic_id, first_offset),
            )
            self.checkpoints.bound_recovery_point(log)
            if partition in self._being_made or not self.stopped_cleanly:
                # After a crash the files found may not survive the next one.
                self.syncs.owe_identity(log, topic_id)
            if log.flushed_offset < log.end_offset:
                # What survived a crash was readable before it, and its sync is overdue: acknowledgements and flush.ms
                # hold again only after a sync.
                self.syncs.sync_now(log)
        except PassingStorageError:
            raise
        except StorageError as error:
            self.fail(error)
            raise
        log.on_dirty = self.syncs.note_dirty
        self._logs[partition] = log
        self._being_made.pop(partition, None)
        self.checkpoints.opened(partition)
        return log

    def reconfigure(self, log: PartitionLog, config: LogConfig) -> None:
        """Apply a new configuration; waiters whose condition no longer applies are completed at once."""
        flush_ms = log.config.flush_ms
        log.reconfigure(config)
        if config.flush_ms < flush_ms:
            self.syncs.flush_ms_lowered(log)
        self.on_promise(log)

    def remove_partition(self, partition: TopicPartition) -> None:
        """Remove a partition's log; its files are deleted in the background."""
        log = self._logs.pop(partition, None)
        self._forget(partition)
        self.removals.discard(f"{self.path}/{partition}")
        if log is not None:
            self.syncs.forget(log)
            log.release()

    def _find_owned(self, partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether a partition's directory exists and belongs to this topic; one of another topic is moved away."""
        directory = f"{self.path}/{partition}"
        names = self._disk.list(directory)
        owner = read_topic_id(self._disk, directory) if names else None
        if owner == topic_id:
            return True
        if owner is not None:
            # Usually the rest of an interrupted deletion, but a damaged file looks the same.
            self.removals.set_aside(partition, "another topic of that name")
        elif any(name.endswith(LOG_SUFFIX) and self._disk.open(f"{directory}/{name}").size for name in names):
            # Nothing of this topic was acknowledged, else its identity would be durable. Another topic's may have been.
            self.removals.set_aside(partition, "a topic that it does not name")
        elif names:
            self.removals.discard(directory)
        return False

    def needs_recovery(self) -> None:
        """An existing log could not be opened: the next start must not skip recovery."""
        self._has_unrecovered = True

    def _forget(self, partition: TopicPartition) -> None:
        """Drop everything known of an earlier log of this name."""
        self.checkpoints.forget(partition)
        self._being_made.pop(partition, None)

    # --- the disk

    async def insist(self, call: Callable[[], None], problem: str) -> None:
        """Make a call in a thread, and retry as long as the disk refuses it for a passing reason."""
        while True:
            try:
                await self._disk.offload(call)
                return
            except PassingStorageError as error:
                logger.error("%s: %s, retrying: %s", self.path, problem, error, extra={"repeats": problem})
                await asyncio.sleep(RETRY_SECONDS)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a slow call in one of the disk's threads."""
        return await self._disk.offload(call)

    def require_online(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the directory is offline."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))

    def fail(self, error: StorageError) -> None:
        """Take the directory offline: its disk can no longer be trusted."""
        if self.failure is not None:
            return
        if isinstance(error, RemovedError):
            return  # removed by this broker during other work on it
        if isinstance(error, TooManyOpenFilesError):
            logger.error("%s stays online: %s", self.path, error, extra={"repeats": "no descriptor left"})
            return
        self.failure = error
        logger.critical(
            "log directory %s is offline: %s. Its partitions are not served until the disk is repaired "
            "and the broker restarted.",
            self.path,
            error,
            extra={"log_dir": self.path},
        )
        self.on_failure(self)

    def _background_failed(self, error: BaseException) -> None:
        if not isinstance(error, StorageError):
            logger.critical("Background work in %s failed", self.path, exc_info=error)
            error = StorageError(f"background work failed: {error}")
        self.fail(error)


def _ignore(log: PartitionLog) -> None:
    """Do nothing: no listener is set yet."""


def _ignore_failure(directory: LogDirectory) -> None:
    """Do nothing: no listener is set yet."""
