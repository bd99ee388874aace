"""One log directory: the partition logs in it, and whether the disk still works.

A disk error takes the whole directory offline, loudly, and nothing in it is served or promised any more; a full
disk, or a process without descriptors, only refuses what it cannot do now. Other directories go on. What runs in a
thread uses a log's directory by itself and never by its name, which the loop changes when the topic is deleted. The
clean shutdown marker exists only between a clean stop and the next start. What is done to logs has modules of its own:
`log_syncs`, `offset_checkpoints`, `log_starts`, `log_cuts`, `segment_swaps` and `removals`.
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
    """A directory of partition logs that lives and fails as one."""

    def __init__(self, path: str, runtime: Runtime, *, background_bytes: int, background_ms: int) -> None:
        self.path = path
        self.failure: StorageError | None = None
        #: By which the directory is known wherever it is mounted; set by `identify`.
        self.directory_id = ""
        #: Told when a log may promise more than before.
        self.on_promise: Callable[[PartitionLog], None] = _ignore
        #: Told once when the directory goes offline.
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
        #: Partitions whose directory was made here and whose log was not opened yet, as the disk has refused that.
        self._being_made: dict[TopicPartition, None] = {}
        self.stopped_cleanly = False
        #: The broker epoch in which it was last stopped cleanly; -1 where it was not, or by no known one.
        self.stopped_in_epoch = -1
        #: The broker epoch now, for the next clean stop.
        self.broker_epoch = -1
        #: Whether nothing new is begun any more.
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
        """How many logs are open in it."""
        return len(self._logs)

    def is_open(self, log: PartitionLog) -> bool:
        """Whether a log is still the one of its partition here."""
        return self._logs.get(log.partition) is log

    def holds(self, log: PartitionLog) -> bool:
        """Whether a log is still the one of its partition here, on a disk that works."""
        return (
            self._logs.get(log.partition) is log
            and self.failure is None
            and not self.is_closing
            and not log.is_being_cut
        )

    # --- opening and closing

    def open(self) -> None:
        """Read the checkpoints and take the clean shutdown marker away, durably, before anything is written."""
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
        """Sync all that a killed process left in the page cache.

        What it cut or removed must not come back with the next power cut, behind records that were appended since.
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
        """Refuse a directory that another broker or cluster, or a newer version, wrote; mark a new one as ours."""
        self.directory_id = directory_identity.identify(
            self._disk, self.path, self._runtime.random, broker_id, cluster_id
        )

    def partition_directories(self) -> list[TopicPartition]:
        """Every partition directory found; what does not say that it is one is not ours to touch."""
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
        """Every log was opened: begin to sync in the background whatever is written."""
        self._is_started = True
        self.syncs.start()

    async def close(self) -> None:
        """Sync everything and leave the marker that lets the next start skip recovery."""
        self.is_closing = True
        # A sync that was cancelled half-way might still run beside the last one.
        # So is a cleaned segment that is on its way to its place.
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
            # A log that was never opened since the last crash still needs its recovery.
            if (self.stopped_cleanly or self._is_started) and not self._has_unrecovered:
                marker = f"{self.path}/{CLEAN_SHUTDOWN}"
                content = clean_shutdown_marker(self.broker_epoch)
                await self._disk.offload(lambda: self._disk.replace_file(marker, content))
        except StorageError as error:
            self.fail(error)

    # --- logs

    def open_partition(self, partition: TopicPartition, topic_id: UUID, config: LogConfig) -> PartitionLog:
        """Open or create the log of a partition of one topic; a directory of another topic is set aside."""
        directory = f"{self.path}/{partition}"
        disk = self._disk
        try:
            if self._find_owned(partition, topic_id):
                found = read_metadata(disk, directory)
                first_offset = None if found is None else found[1]
            else:
                self._forget(partition)
                if self.checkpoints.has_outdated(partition):
                    # It must be gone before the first record. Rare: whoever removes a partition sees to it.
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
                # After a crash nobody knows whether what is there would survive the next one.
                self.syncs.owe_identity(log, topic_id)
            if log.flushed_offset < log.end_offset:
                # What survived a crash was readable before it, and the time in which it should have been synced
                # is over: both promises hold again only after a sync.
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
        """Let a log go by another configuration; whoever waits for what it no longer asks for is told at once."""
        flush_ms = log.config.flush_ms
        log.reconfigure(config)
        if config.flush_ms < flush_ms:
            self.syncs.flush_ms_lowered(log)
        self.on_promise(log)

    def remove_partition(self, partition: TopicPartition) -> None:
        """Take a partition's log away; its files are removed in the background."""
        log = self._logs.pop(partition, None)
        self._forget(partition)
        self.removals.discard(f"{self.path}/{partition}")
        if log is not None:
            self.syncs.forget(log)
            log.release()

    def _find_owned(self, partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether a partition's directory is there and of this topic; what is there of others is put out of the way."""
        directory = f"{self.path}/{partition}"
        names = self._disk.list(directory)
        owner = read_topic_id(self._disk, directory) if names else None
        if owner == topic_id:
            return True
        if owner is not None:
            # Mostly what a deletion left that a crash interrupted, but a damaged file looks the same.
            self.removals.set_aside(partition, "another topic of that name")
        elif any(name.endswith(LOG_SUFFIX) and self._disk.open(f"{directory}/{name}").size for name in names):
            # Of this topic nothing can have been promised, for its identity would be durable. Of another there may be.
            self.removals.set_aside(partition, "a topic that it does not name")
        elif names:
            self.removals.discard(directory)
        return False

    def needs_recovery(self) -> None:
        """A log that was found could not be opened: the next start must not trust it."""
        self._has_unrecovered = True

    def _forget(self, partition: TopicPartition) -> None:
        """Know nothing any more of a log that had this name."""
        self.checkpoints.forget(partition)
        self._being_made.pop(partition, None)

    # --- the disk

    async def insist(self, call: Callable[[], None], problem: str) -> None:
        """Make a call in a thread, again and again while the disk refuses it for a reason that passes."""
        while True:
            try:
                await self._disk.offload(call)
                return
            except PassingStorageError as error:
                logger.error("%s: %s, retrying: %s", self.path, problem, error, extra={"repeats": problem})
                await asyncio.sleep(RETRY_SECONDS)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a call that takes long beside the event loop, in one of the disk's threads."""
        return await self._disk.offload(call)

    def require_online(self) -> None:
        """Refuse with KAFKA_STORAGE_ERROR where the directory has failed."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))

    def fail(self, error: StorageError) -> None:
        """Take the directory offline: what its disk holds can no longer be promised."""
        if self.failure is not None:
            return
        if isinstance(error, RemovedError):
            return  # by this broker, while somebody was still at work on it
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
            logger.critical("background work of %s failed", self.path, exc_info=error)
            error = StorageError(f"background work failed: {error}")
        self.fail(error)


def _ignore(log: PartitionLog) -> None:
    """Nobody listens yet."""


def _ignore_failure(directory: LogDirectory) -> None:
    """Nobody listens yet."""
