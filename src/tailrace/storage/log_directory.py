"""One log directory: the partition logs in it, their checkpoints, their syncs, and whether the disk still works.

A disk error takes the whole directory offline, loudly, and nothing in it is served or promised any more; a full
disk only refuses what does not fit. Other directories go on. The clean shutdown marker exists only between a
clean stop and the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import DiskFullError
from tailrace.runtime.tasks import Tasks
from tailrace.storage.checkpoints import (
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
    write_offsets,
    write_topic_id,
)
from tailrace.storage.log_config import LogConfig
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.recovery import open_log
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.storage")

META_PROPERTIES = "meta.properties"
_FORMAT_VERSION = 1
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_DELETED_DIRECTORY_SUFFIX = "-delete"


class LogDirectory:
    """A directory of partition logs that lives and fails as one."""

    def __init__(self, path: str, runtime: Runtime, *, background_bytes: int, background_ms: int) -> None:
        self.path = path
        self.failure: StorageError | None = None
        #: Told when a log may promise more than before.
        self.on_promise: Callable[[PartitionLog], None] = _ignore
        #: Told once when the directory goes offline.
        self.on_failure: Callable[[LogDirectory], None] = _ignore_failure
        self._runtime = runtime
        self._disk = runtime.disk
        self._background_bytes = background_bytes
        self._background_ms = background_ms
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._dirty: dict[PartitionLog, None] = {}
        self._syncing: dict[PartitionLog, asyncio.Task[None]] = {}
        self._tasks = Tasks(self._background_failed)
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        # New logs, whose directory and identity become durable with their first sync.
        self._unsynced_identities: dict[PartitionLog, UUID] = {}
        self.stopped_cleanly = False

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._logs.values()))

    # --- opening and closing

    def open(self) -> None:
        """Read the checkpoints and take the clean shutdown marker away, durably, before anything is written."""
        disk = self._disk
        disk.make_directory(self.path)
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.stopped_cleanly = disk.exists(marker)
        self._recovery_points = read_offsets(disk, f"{self.path}/{RECOVERY_POINTS}")
        self._log_starts = read_offsets(disk, f"{self.path}/{LOG_START_OFFSETS}")
        disk.remove(marker)
        disk.sync_directory(self.path)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Refuse a directory that another broker or cluster, or a newer version, wrote; mark a new one as ours."""
        path = f"{self.path}/{META_PROPERTIES}"
        content = self._disk.read_file(path)
        if content is None:
            lines = [f"version={_FORMAT_VERSION}", f"cluster.id={cluster_id}", f"node.id={broker_id}", ""]
            self._disk.replace_file(path, "\n".join(lines).encode())
            return
        found = dict(line.split("=", 1) for line in content.decode(errors="replace").split("\n") if "=" in line)
        expected = {"version": str(_FORMAT_VERSION), "cluster.id": cluster_id, "node.id": str(broker_id)}
        for key, value in expected.items():
            if found.get(key) != value:
                raise StorageError(
                    f"{path} says {key}={found.get(key)} but this broker has {key}={value}: the directory belongs to "
                    "another broker or a newer version; give this one its own with --data-dir"
                )

    def partition_directories(self) -> list[tuple[TopicPartition, UUID | None]]:
        """Every partition directory found, with the id of the topic it belongs to."""
        found = []
        for name in self._disk.list(self.path):
            if name.endswith(_DELETED_DIRECTORY_SUFFIX):
                self._disk.remove(f"{self.path}/{name}")
                continue
            topic, separator, number = name.rpartition("-")
            if separator and topic and number.isdecimal() and self._disk.list(f"{self.path}/{name}"):
                found.append((TopicPartition(topic, int(number)), read_topic_id(self._disk, f"{self.path}/{name}")))
        return found

    def start(self) -> None:
        """Begin to sync in the background whatever is written."""
        if self._background_ms >= 0:
            self._tasks.spawn(self._sync_periodically(), f"sync {self.path}")

    async def close(self) -> None:
        """Sync everything and leave the marker that lets the next start skip recovery."""
        await self._tasks.cancel()
        if self.failure is not None:
            return
        try:
            for log in self:
                await self._sync_once(log)
                log.close()
            self.write_checkpoints()
            self._disk.replace_file(f"{self.path}/{CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":-1}')
        except StorageError as error:
            self.fail(error)

    # --- logs

    def open_partition(self, partition: TopicPartition, topic_id: UUID, config: LogConfig) -> PartitionLog:
        """Open or create the log of a partition of one topic; a directory of another topic is set aside."""
        directory = f"{self.path}/{partition}"
        disk = self._disk
        try:
            found = read_topic_id(disk, directory) if disk.list(directory) else None
            if found is not None and found != topic_id:
                logger.warning("%s belongs to another topic of that name and is removed", directory)
                self._discard(directory)
                found = None
                self._recovery_points.pop(partition, None)
                self._log_starts.pop(partition, None)
            if found is None:
                disk.make_directory(directory)
                write_topic_id(disk, directory, topic_id, sync=False)
            log = open_log(
                partition,
                directory,
                config,
                disk,
                self._runtime.clock,
                stopped_cleanly=self.stopped_cleanly,
                recovery_point=self._recovery_points.get(partition, 0),
                log_start_offset=self._log_starts.get(partition, 0),
            )
        except DiskFullError:
            raise
        except StorageError as error:
            self.fail(error)
            raise
        if found is None:
            self._unsynced_identities[log] = topic_id
        log.on_dirty = self._note_dirty
        self._logs[partition] = log
        if log.needs_flush:
            self._sync_soon(log)
        return log

    def remove_partition(self, partition: TopicPartition) -> None:
        """Take a partition's log away; its files are removed in the background."""
        log = self._logs.pop(partition, None)
        self._recovery_points.pop(partition, None)
        self._log_starts.pop(partition, None)
        if log is not None:
            self._dirty.pop(log, None)
            self._unsynced_identities.pop(log, None)
        self._discard(f"{self.path}/{partition}")

    def _discard(self, directory: str) -> None:
        aside = f"{directory}.{self._runtime.random.getrandbits(128):032x}{_DELETED_DIRECTORY_SUFFIX}"
        try:
            if self._disk.exists(directory):
                self._disk.rename(directory, aside)
        except StorageError as error:
            self.fail(error)
            return
        self._tasks.spawn(self._disk.offload(lambda: self._disk.remove(aside)), f"remove {aside}")

    def require_online(self) -> None:
        """Refuse with KAFKA_STORAGE_ERROR where the directory has failed."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))

    def fail(self, error: StorageError) -> None:
        """Take the directory offline: what its disk holds can no longer be promised."""
        if self.failure is not None:
            return
        self.failure = error
        logger.critical(
            "log directory %s is offline: %s. Its partitions are not served until the disk is repaired "
            "and the broker restarted.",
            self.path,
            error,
        )
        self.on_failure(self)

    def _background_failed(self, error: BaseException) -> None:
        if not isinstance(error, StorageError):
            logger.critical("background work of %s failed", self.path, exc_info=error)
            error = StorageError(f"background work failed: {error}")
        self.fail(error)

    # --- syncing

    def _note_dirty(self, log: PartitionLog) -> None:
        self._dirty[log] = None
        if log.promised_offset < log.end_offset or log.unsynced_bytes >= self._background_bytes:
            self._sync_soon(log)

    def _sync_soon(self, log: PartitionLog) -> None:
        if log not in self._syncing and self.failure is None:
            self._syncing[log] = self._tasks.spawn(self._sync(log), f"sync {log.partition}")

    async def _sync(self, log: PartitionLog) -> None:
        """Sync one log until it owes nobody a promise: whoever arrives meanwhile shares the next sync."""
        try:
            while True:
                await self._sync_once(log)
                if self._logs.get(log.partition) is log:
                    self.on_promise(log)
                if not log.needs_flush:
                    return
        except StorageError as error:
            if self._logs.get(log.partition) is log:
                self.fail(error)
        finally:
            del self._syncing[log]

    async def _sync_once(self, log: PartitionLog) -> None:
        self._dirty.pop(log, None)
        topic_id = self._unsynced_identities.pop(log, None)
        target, work = log.sync_work()

        def all_work() -> None:
            if topic_id is not None:
                write_topic_id(self._disk, log.directory, topic_id, sync=True)
                self._disk.sync_directory(self.path)
            work()

        await self._disk.offload(all_work)
        log.synced(target)

    async def _sync_periodically(self) -> None:
        interval = max(0.01, self._background_ms / 1000)
        while self.failure is None:
            await asyncio.sleep(interval / 2)
            now = self._runtime.clock.monotonic()
            for log in list(self._dirty):
                limit = min(interval, log.config.flush_ms / 1000)
                if log.dirty_since is not None and now - log.dirty_since >= limit / 2:
                    self._sync_soon(log)

    # --- housekeeping

    def write_checkpoints(self) -> None:
        """Write down how far each log is durable and where it starts."""
        points = {log.partition: log.flushed_offset for log in self}
        starts = {log.partition: log.start_offset for log in self if log.start_offset > 0}
        try:
            write_offsets(self._disk, f"{self.path}/{RECOVERY_POINTS}", points)
            write_offsets(self._disk, f"{self.path}/{LOG_START_OFFSETS}", starts)
        except DiskFullError as error:
            logger.error("checkpoints of %s are not written: %s", self.path, error)
        except StorageError as error:
            self.fail(error)

    def remove_later(self, log: PartitionLog, segments: list[Segment]) -> None:
        """Remove the files of segments that left a log, once readers have had time to finish."""
        if segments:
            self._tasks.spawn(
                self._remove_segments(segments, log.config.file_delete_delay_ms / 1000), f"remove {log.partition}"
            )

    async def _remove_segments(self, segments: list[Segment], delay: float) -> None:
        await asyncio.sleep(delay)
        for segment in segments:
            await self._disk.offload(segment.remove_files)


def _ignore(log: PartitionLog) -> None:
    """Nobody listens yet."""


def _ignore_failure(directory: LogDirectory) -> None:
    """Nobody listens yet."""
