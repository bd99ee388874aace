"""One log directory: the partition logs in it, their checkpoints, their syncs, and whether the disk still works.

A disk error takes the whole directory offline, loudly, and nothing in it is served or promised any more; a full
disk, or a process without descriptors, only refuses what it cannot do now. Other directories go on. What runs in a
thread uses a log's directory by itself and never by its name, which the loop changes when the topic is deleted. The
clean shutdown marker exists only between a clean stop and the next start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import Directory, DiskFullError, PassingStorageError, RemovedError, TooManyOpenFilesError
from tailrace.runtime.histogram import Histogram
from tailrace.runtime.tasks import Tasks
from tailrace.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    Gaps,
    encode_uuid,
    read_offsets,
    write_gaps,
    write_offsets,
)
from tailrace.storage.log_config import NEVER, LogConfig
from tailrace.storage.partition_log import LogPast, PartitionLog
from tailrace.storage.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadata,
    read_metadata,
    read_topic_id,
    write_metadata,
)
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.recovery import open_log
from tailrace.storage.segment import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment

logger = logging.getLogger("tailrace.storage")

T = TypeVar("T")

META_PROPERTIES = "meta.properties"
_FORMAT_VERSION = 1
_DIRECTORY_ID = "directory.id"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_DELETED_DIRECTORY_SUFFIX = "-delete"
_STRAY_DIRECTORY_SUFFIX = "-stray"
_DELETED_DIRECTORY = re.compile(rf"\.[0-9a-f]{{32}}{_DELETED_DIRECTORY_SUFFIX}$")
_STRAY_DIRECTORY = re.compile(rf"\.[0-9a-f]{{32}}{_STRAY_DIRECTORY_SUFFIX}$")
_MAX_FILE_NAME_BYTES = 255
#: More logs than this cost less with one sync of the whole file system than with one sync each.
_SYNCED_ONE_BY_ONE = 32
#: Of so many logs a sync works out what to do, or notes that it is done, before others have their turn.
_SYNCED_PER_TURN = 200
#: How often it is looked whether compaction has let go of a log that is to be cut.
_CLEANING_LOOKED_AT_SECONDS = 0.05
#: How long work that the disk refused for now, being full or out of descriptors, waits before it is tried again.
_RETRY_SECONDS = 1.0
#: Log starts that change within this time are saved together.
_START_SAVING_SECONDS = 0.1
#: Seconds that a sync may take, from a disk with a cache of its own to one that is overwhelmed.
_SYNC_TIME_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def partition_named(name: str) -> TopicPartition | None:
    """The partition that a directory of this name may hold, None where it is no partition's name."""
    topic, separator, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if separator and topic and number.isdecimal() else None


def is_deleted(name: str) -> bool:
    """Whether a directory of this name is of a deleted topic, and removed at the next start if not before."""
    return _DELETED_DIRECTORY.search(name) is not None


def is_stray(name: str) -> bool:
    """Whether a directory of this name was set aside because no topic owns it."""
    return _STRAY_DIRECTORY.search(name) is not None


def identity_problem(path: str, content: bytes, broker_id: int, cluster_id: str) -> str | None:
    """Why a directory with this meta.properties is not one of this broker; None where it is."""
    found = _properties(content)
    expected = {"version": str(_FORMAT_VERSION), "cluster.id": cluster_id, "node.id": str(broker_id)}
    owners = {"version": "a newer version", "cluster.id": "another cluster", "node.id": "another broker"}
    for key, value in expected.items():
        if found.get(key) != value:
            return (
                f"{path} says {key}={found.get(key)} but this broker has {key}={value}: the directory belongs to "
                f"{owners[key]}; give this one its own with --data-dir"
            )
    return None


def _epoch_in(marker: bytes | None) -> int:
    """The broker epoch in a clean shutdown marker; -1 where there is none."""
    try:
        epoch = json.loads(marker or b"{}").get("brokerEpoch", -1)
    except (ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def _properties(content: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in content.decode(errors="replace").split("\n") if "=" in line)


class _Owed(NamedTuple):
    """What a sync has taken upon itself for one log."""

    log: PartitionLog
    topic_id: UUID | None
    is_written: bool
    target: int
    work: Callable[[], None]


class LogDirectory:
    """A directory of partition logs that lives and fails as one."""

    def __init__(self, path: str, runtime: Runtime, *, background_bytes: int, background_ms: int) -> None:
        self.path = path
        self.failure: StorageError | None = None
        #: By which the directory is known wherever it is mounted; set by `identify`.
        self.directory_id = ""
        #: How long syncs took, each of which may have been of many logs.
        self.sync_times = Histogram(_SYNC_TIME_BOUNDS)
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
        self.tasks = Tasks(self._background_failed)
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        #: Up to where compaction has been through each log.
        self._clean_offsets: dict[TopicPartition, int] = {}
        self._saved_clean_offsets: dict[TopicPartition, int] = {}
        self._saved_log_starts: dict[TopicPartition, int] = {}
        self._swapping: dict[asyncio.Task[None], None] = {}
        #: Directories of removed partitions, under the names they have now, whose files are still there.
        self._discarded: list[str] = []
        #: The write of log starts that is about to begin.
        self._start_saving: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None
        #: Up to where each log with several replicas was known to be committed, and what of that is on disk.
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._saved_high_watermarks: dict[TopicPartition, int] = {}
        #: The recovery points that are on disk.
        self._saved_points: dict[TopicPartition, int] = {}
        #: Logs that are being cut, and where: none of their recovery points may be beyond.
        self._cuts: dict[PartitionLog, int] = {}
        #: Partitions whose directory was made here and whose log was not opened yet, as the disk has refused that.
        self._being_made: dict[TopicPartition, None] = {}
        # New logs, whose directory and identity become durable with their first sync.
        self._unsynced_identities: dict[PartitionLog, UUID] = {}
        self._checkpointing = asyncio.Lock()
        self.stopped_cleanly = False
        #: The broker epoch in which it was last stopped cleanly; -1 where it was not, or by no known one.
        self.stopped_in_epoch = -1
        #: The broker epoch now, for the next clean stop.
        self.broker_epoch = -1
        self._is_started = False
        self._has_unrecovered = False
        self._is_closing = False

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._logs.values()))

    @property
    def log_count(self) -> int:
        """How many logs are open in it."""
        return len(self._logs)

    # --- opening and closing

    def open(self) -> None:
        """Read the checkpoints and take the clean shutdown marker away, durably, before anything is written."""
        disk = self._disk
        disk.make_directory(self.path)
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        found = disk.read_file(marker)
        self.stopped_cleanly = found is not None
        self.stopped_in_epoch = self.broker_epoch = _epoch_in(found)
        if not self.stopped_cleanly:
            self._make_durable()
        self._recovery_points = read_offsets(disk, f"{self.path}/{RECOVERY_POINTS}")
        self._saved_points = dict(self._recovery_points)
        self._high_watermarks = read_offsets(disk, f"{self.path}/{HIGH_WATERMARKS}")
        self._saved_high_watermarks = dict(self._high_watermarks)
        self._log_starts = read_offsets(disk, f"{self.path}/{LOG_START_OFFSETS}")
        self._saved_log_starts = dict(self._log_starts)
        self._clean_offsets = read_offsets(disk, f"{self.path}/{CLEANER_OFFSETS}")
        self._saved_clean_offsets = dict(self._clean_offsets)
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
        path = f"{self.path}/{META_PROPERTIES}"
        content = self._disk.read_file(path)
        if content is not None:
            problem = identity_problem(path, content, broker_id, cluster_id)
            if problem is not None:
                raise StorageError(problem)
            self.directory_id = _properties(content).get(_DIRECTORY_ID, "")
            if self.directory_id:
                return
        self.directory_id = encode_uuid(UUID(int=self._runtime.random.getrandbits(128), version=4))
        lines = [
            f"version={_FORMAT_VERSION}",
            f"cluster.id={cluster_id}",
            f"node.id={broker_id}",
            f"{_DIRECTORY_ID}={self.directory_id}",
            "",
        ]
        try:
            self._disk.replace_file(path, "\n".join(lines).encode())
        except DiskFullError:
            if content is None:
                raise  # else it is ours without doubt, and gets its id when there is room

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
        if self._background_ms >= 0:
            self.tasks.spawn(self._sync_periodically(), f"sync {self.path}")

    async def close(self) -> None:
        """Sync everything and leave the marker that lets the next start skip recovery."""
        self._is_closing = True
        # A sync that was cancelled half-way might still run beside the last one.
        # So is a cleaned segment that is on its way to its place.
        for task in [*self._syncing.values(), *self._swapping]:
            await asyncio.wait([task])
        await self.tasks.cancel()
        if self.failure is not None:
            return
        try:
            await self._sync_once(*[log for log in self if not log.is_durable or log in self._unsynced_identities])
            for log in self:
                log.close()
            await self.save_checkpoints()
            # A log that was never opened since the last crash still needs its recovery.
            if (self.stopped_cleanly or self._is_started) and not self._has_unrecovered:
                marker = f"{self.path}/{CLEAN_SHUTDOWN}"
                content = json.dumps({"version": 0, "brokerEpoch": self.broker_epoch}, separators=(",", ":")).encode()
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
                if self.has_outdated(partition):
                    # It must be gone before the first record. Rare: whoever removes a partition sees to it.
                    self._write_all(offsets := self._all_offsets())
                    self._saved_all(offsets)
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
                recovery_point=self._recovery_points.get(partition, 0),
                log_start_offset=self._log_starts.get(partition, 0),
                metadata=PartitionMetadata(disk.directory(directory), topic_id, first_offset),
            )
            if self._recovery_points.get(partition, 0) > log.end_offset:
                # What is appended now is not synced, and the next recovery must look at it. Rare: damage, or a log that
                # was cut where it had a gap.
                self._recovery_points[partition] = log.end_offset
                self._write_all(offsets := self._all_offsets())
                self._saved_all(offsets)
            if partition in self._being_made or not self.stopped_cleanly:
                # After a crash nobody knows whether what is there would survive the next one.
                self._unsynced_identities[log] = topic_id
            if log.flushed_offset < log.end_offset:
                # What survived a crash was readable before it, and the time in which it should have been synced
                # is over: both promises hold again only after a sync.
                target, work = self._sync_work(log)
                work()
                log.synced(target)
        except PassingStorageError:
            raise
        except StorageError as error:
            self.fail(error)
            raise
        log.on_dirty = self._note_dirty
        self._logs[partition] = log
        self._being_made.pop(partition, None)
        self._recovery_points.pop(partition, None)
        self._log_starts.pop(partition, None)
        return log

    def reconfigure(self, log: PartitionLog, config: LogConfig) -> None:
        """Let a log go by another configuration; whoever waits for what it no longer asks for is told at once."""
        flush_ms = log.config.flush_ms
        log.reconfigure(config)
        if log in self._dirty and config.flush_ms < flush_ms:
            self.tasks.spawn(self._sync_in_time(log), f"flush {log.partition}")
        self.on_promise(log)

    def remove_partition(self, partition: TopicPartition) -> None:
        """Take a partition's log away; its files are removed in the background."""
        log = self._logs.pop(partition, None)
        self._forget(partition)
        self._discard(f"{self.path}/{partition}")
        if log is not None:
            self._dirty.pop(log, None)
            self._unsynced_identities.pop(log, None)
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
            self.set_aside(partition, "another topic of that name")
        elif any(name.endswith(LOG_SUFFIX) and self._disk.open(f"{directory}/{name}").size for name in names):
            # Of this topic nothing can have been promised, for its identity would be durable. Of another there may be.
            self.set_aside(partition, "a topic that it does not name")
        elif names:
            self._discard(directory)
        return False

    def _forget(self, partition: TopicPartition) -> None:
        """Know nothing any more of a log that had this name."""
        self._recovery_points.pop(partition, None)
        self._log_starts.pop(partition, None)
        self._clean_offsets.pop(partition, None)
        self._high_watermarks.pop(partition, None)
        self._being_made.pop(partition, None)

    def set_aside(self, partition: TopicPartition, owner: str = "no topic") -> None:
        """Rename a partition's directory that is not this topic's, or no topic's; nothing in it is removed."""
        directory = f"{self.path}/{partition}"
        aside = self._other_name(directory, _STRAY_DIRECTORY_SUFFIX)
        try:
            self._disk.rename(directory, aside)
        except StorageError as error:
            self.fail(error)
            return
        logger.warning("%s belongs to %s; it is now %s, remove it if nobody misses it", directory, owner, aside)

    def needs_recovery(self) -> None:
        """A log that was found could not be opened: the next start must not trust it."""
        self._has_unrecovered = True

    def _discard(self, directory: str) -> None:
        aside = self._other_name(directory, _DELETED_DIRECTORY_SUFFIX)
        try:
            if self._disk.exists(directory):
                self._disk.rename(directory, aside)
        except StorageError as error:
            self.fail(error)
            return
        self._discarded.append(aside)
        if self._removal is None or self._removal.done():
            self._removal = self.tasks.spawn(self._remove_discarded(), f"remove partitions in {self.path}")

    async def _remove_discarded(self) -> None:
        """Remove the files of removed partitions, one directory at a time, so that syncs find a thread that is free."""
        while self._discarded:
            batch, self._discarded = self._discarded, []
            await self.forget_removed()
            # Until the new names are durable a power cut brings the old ones back, with whatever is left of the files.
            await self._insist(lambda: self._disk.sync_directory(self.path), "partitions are not removed")
            for aside in batch:
                await self._insist(partial(self._disk.remove, aside), "a partition is not removed")

    async def _insist(self, call: Callable[[], None], problem: str) -> None:
        """Make a call in a thread, again and again while the disk refuses it for a reason that passes."""
        while True:
            try:
                await self._disk.offload(call)
                return
            except PassingStorageError as error:
                logger.error("%s: %s, retrying: %s", self.path, problem, error, extra={"repeats": problem})
                await asyncio.sleep(_RETRY_SECONDS)

    def _other_name(self, directory: str, suffix: str) -> str:
        ending = f".{self._runtime.random.getrandbits(128):032x}{suffix}"
        name = directory.rpartition("/")[2][: _MAX_FILE_NAME_BYTES - len(ending)]
        return f"{self.path}/{name}{ending}"

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

    # --- syncing

    def _note_dirty(self, log: PartitionLog) -> None:
        if log not in self._dirty:
            self._dirty[log] = None
            if log.config.flush_ms < NEVER:
                self.tasks.spawn(self._sync_in_time(log), f"flush {log.partition}")
        if log.promised_offset < log.end_offset or log.unsynced_bytes >= self._background_bytes:
            self._sync_soon(log)

    def _sync_soon(self, log: PartitionLog) -> None:
        if log not in self._syncing and self.failure is None:
            self._syncing[log] = self.tasks.spawn(self._sync(log), f"sync {log.partition}")

    async def _sync(self, log: PartitionLog) -> None:
        """Sync one log until it owes nobody a promise: whoever arrives meanwhile shares the next sync."""
        try:
            while not self._is_closing and self._logs.get(log.partition) is log:
                try:
                    await self._sync_once(log)
                except PassingStorageError as error:
                    logger.error(
                        "%s is not synced, and tried again: %s", log.partition, error, extra={"repeats": "not synced"}
                    )
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if self._logs.get(log.partition) is log:
                    self.on_promise(log)
                if not log.needs_flush:
                    return
        except StorageError as error:
            if self._logs.get(log.partition) is log:
                self.fail(error)
        finally:
            del self._syncing[log]

    async def _sync_together(self, logs: list[PartitionLog]) -> None:
        """Sync logs that nobody waits for in one thread, so that those waited for find others."""
        try:
            await self._sync_once(*logs)
            for count, log in enumerate(logs, 1):
                if self._logs.get(log.partition) is log:
                    self.on_promise(log)
                if count % _SYNCED_PER_TURN == 0:
                    await asyncio.sleep(0)
        except PassingStorageError as error:
            logger.error("logs in %s are not synced, and tried again: %s", self.path, error)
        except StorageError as error:
            self.fail(error)
        finally:
            for log in logs:
                del self._syncing[log]
                if log.needs_flush and not self._is_closing:
                    self._sync_soon(log)

    async def _sync_once(self, *logs: PartitionLog) -> None:
        owed: list[_Owed] = []

        def sync_owed() -> None:
            is_synced = sum(one.is_written for one in owed) > _SYNCED_ONE_BY_ONE and self._disk.sync_all(self.path)
            for one in owed:
                if is_synced and one.is_written:
                    continue
                try:
                    one.work()
                except RemovedError:
                    continue  # its topic was deleted meanwhile; the others are synced all the same

        began = self._runtime.clock.monotonic()
        try:
            for count, log in enumerate(logs, 1):
                if count % _SYNCED_PER_TURN == 0:
                    await asyncio.sleep(0)
                if self._logs.get(log.partition) is log:
                    # What has still to be written, and not only synced, is done log by log; an identity was written
                    # when its log was made.
                    is_written, topic_id = not log.has_files_to_write, self._unsynced_identities.get(log)
                    owed.append(_Owed(log, topic_id, is_written, *self._sync_work(log)))
                    self._dirty.pop(log, None)
            await self._disk.offload(sync_owed)
        except (StorageError, asyncio.CancelledError):
            # What this sync had taken upon itself is owed again.
            for one in owed:
                if self._logs.get(one.log.partition) is one.log:
                    one.log.sync_failed()
                    self._dirty[one.log] = None
                    if one.topic_id is not None:
                        self._unsynced_identities[one.log] = one.topic_id
            raise
        self.sync_times.observe(self._runtime.clock.monotonic() - began)
        for count, one in enumerate(owed, 1):
            one.log.synced(one.target)
            if count % _SYNCED_PER_TURN == 0:
                await asyncio.sleep(0)

    def _sync_work(self, log: PartitionLog) -> tuple[int, Callable[[], None]]:
        """What makes a log durable up to an offset: its segments and, the first time, that it is there at all."""
        target, work = log.sync_work(with_identity=log in self._unsynced_identities)
        if self._unsynced_identities.pop(log, None) is None:
            return target, work

        def first_work() -> None:
            self._disk.sync_directory(self.path)
            work()

        return target, first_work

    async def _sync_in_time(self, log: PartitionLog) -> None:
        """Sync a log as its own `flush.ms` asks, unless something else has synced it meanwhile."""
        await asyncio.sleep(log.config.flush_ms / 1000)
        while (running := self._syncing.get(log)) is not None:
            await asyncio.wait([running])
        if log in self._dirty:
            self._sync_soon(log)

    async def _sync_periodically(self) -> None:
        interval = max(0.01, self._background_ms / 1000)
        while self.failure is None:
            await asyncio.sleep(interval / 2)
            now = self._runtime.clock.monotonic()
            due = [log for log in self._dirty if log.dirty_since is not None and now - log.dirty_since >= interval / 2]
            logs = [log for log in due if log not in self._syncing]
            if logs:
                task = self.tasks.spawn(self._sync_together(logs), f"sync {len(logs)} logs in {self.path}")
                self._syncing.update(dict.fromkeys(logs, task))
                await asyncio.wait([task])

    # --- housekeeping

    async def save_checkpoints(self) -> None:
        """Write down how far each log is durable and where it starts; one at a time, for it is the same two files."""
        async with self._checkpointing:
            await self._write_checkpoints()

    def _points_and_starts(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        # Logs that could not be opened keep what was known of them.
        points = self._recovery_points | {
            log.partition: min(log.flushed_offset, self._cuts.get(log, log.flushed_offset)) for log in self
        }
        return points, self._log_starts | {log.partition: log.start_offset for log in self if log.start_offset > 0}

    async def _write_checkpoints(self) -> None:
        points, starts = self._points_and_starts()
        # From now on they may be written down, of a log too that is removed before the write is over.
        self._saved_points, self._saved_log_starts = points | self._saved_points, starts | self._saved_log_starts

        def write() -> None:
            write_offsets(self._disk, f"{self.path}/{RECOVERY_POINTS}", points)
            write_offsets(self._disk, f"{self.path}/{LOG_START_OFFSETS}", starts)

        try:
            await self._disk.offload(write)
        except PassingStorageError:
            raise
        except StorageError as error:
            self.fail(error)
            raise
        self._saved_points, self._saved_log_starts = points, starts
        for log in self:
            # A log that was truncated during the write starts earlier by now.
            if log.saved_start_offset < starts.get(log.partition, 0) <= log.start_offset:
                log.saved_start_offset = starts[log.partition]

    async def save_starts(self) -> None:
        """Try to save where logs start now; calls within a moment of each other share one write."""
        if self._start_saving is None:
            self._start_saving = self.tasks.spawn(self._save_starts_soon(), f"save log starts in {self.path}")
        await asyncio.shield(self._start_saving)

    async def _save_starts_soon(self) -> None:
        await asyncio.sleep(_START_SAVING_SECONDS)
        self._start_saving = None
        with suppress(StorageError):  # the periodic checkpoint saves them too
            await self.save_checkpoints()

    async def forget_removed(self) -> None:
        """Have nothing written down of partitions that were removed: it would be taken for a new topic's of that name.

        Where the disk refuses for now, opening a partition of such a name does it.
        """
        async with self._checkpointing:
            offsets = self._all_offsets()
            try:
                await self._disk.offload(lambda: self._write_all(offsets))
            except PassingStorageError as error:
                logger.warning("%s: removed partitions are forgotten later: %s", self.path, error)
                return
            except StorageError as error:
                self.fail(error)
                return
            self._saved_all(offsets)

    def has_outdated(self, partition: TopicPartition) -> bool:
        """Whether something is written down of a partition of this name that was removed."""
        known = (self._recovery_points, self._log_starts, self._high_watermarks, self._clean_offsets)
        return partition not in self._logs and any(
            partition in saved and partition not in here for saved, here in zip(self._saved, known, strict=True)
        )

    def _all_offsets(self) -> tuple[dict[TopicPartition, int], ...]:
        """What all checkpoint files are to hold."""
        return *self._points_and_starts(), dict(self._high_watermarks), dict(self._clean_offsets)

    def _write_all(self, offsets: Sequence[Mapping[TopicPartition, int]]) -> None:
        names = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)
        for name, content, saved in zip(names, offsets, self._saved, strict=True):
            if content != saved:
                write_offsets(self._disk, f"{self.path}/{name}", content)

    def _saved_all(self, offsets: tuple[dict[TopicPartition, int], ...]) -> None:
        self._saved_points, self._saved_log_starts, self._saved_high_watermarks, self._saved_clean_offsets = offsets

    @property
    def _saved(self) -> tuple[dict[TopicPartition, int], ...]:
        """What all checkpoint files hold."""
        return self._saved_points, self._saved_log_starts, self._saved_high_watermarks, self._saved_clean_offsets

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """Up to where a log was known to be committed when that was last written down."""
        return self._high_watermarks.get(partition, 0)

    async def save_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write down up to where logs are committed, unless nothing is new; others keep what was known of them."""
        async with self._checkpointing:
            known = self._high_watermarks | {tp: offset for tp, offset in offsets.items() if tp in self._logs}
            if known == self._saved_high_watermarks:
                return
            self._saved_high_watermarks = known | self._saved_high_watermarks
            logs = dict(self._logs)
            path = f"{self.path}/{HIGH_WATERMARKS}"
            try:
                await self._disk.offload(lambda: write_offsets(self._disk, path, known))
            except PassingStorageError:
                raise
            except StorageError as error:
                self.fail(error)
                raise
            self._saved_high_watermarks = known
            # Of logs that were removed meanwhile nothing is known any more.
            self._high_watermarks = {
                tp: offset for tp, offset in known.items() if tp not in offsets or self._logs.get(tp) is logs.get(tp)
            }

    def remove_later(self, log: PartitionLog, segments: list[Segment]) -> None:
        """Remove the files of segments that left a log, once readers have had time to finish."""
        if segments:
            self.tasks.spawn(
                self._remove_segments(log, segments, log.config.file_delete_delay_ms / 1000),
                f"remove {log.partition}",
            )

    async def _remove_segments(self, log: PartitionLog, segments: list[Segment], delay: float) -> None:
        await asyncio.sleep(delay)
        for segment in segments:
            if self._logs.get(log.partition) is not log:
                return
            names = segment.file_names
            # Else each file would have to be opened again, to stay readable to a segment that nobody reads.
            segment.release()
            await self._insist(partial(_remove_all, log.opened_directory, names), "segments are not removed")

    # --- cutting

    def truncate(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool]
    ) -> asyncio.Task[KafkaError | None]:
        """Cut off what a log has from an offset on, if that is still wanted when all is ready; why it could not be.

        When it has ended the records are gone for good, whatever crashes. Until then nothing may be appended.
        """
        return self._start_cut(log, offset, is_wanted, to_nothing=False)

    def restart(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool], past: LogPast | None = None
    ) -> asyncio.Task[KafkaError | None]:
        """Make a log an empty one that starts at an offset, given what is known of before, under the same terms."""
        return self._start_cut(log, offset, is_wanted, to_nothing=True, past=past)

    def _start_cut(
        self,
        log: PartitionLog,
        offset: int,
        is_wanted: Callable[[], bool],
        *,
        to_nothing: bool,
        past: LogPast | None = None,
    ) -> asyncio.Task[KafkaError | None]:
        if log in self._cuts:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{log.partition} is being cut already")
        self._cuts[log] = log.end_offset
        log.is_being_cut = True
        return self.tasks.spawn(self._cut(log, offset, is_wanted, to_nothing, past), f"cut {log.partition}")

    async def _cut(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool], to_nothing: bool, past: LogPast | None
    ) -> KafkaError | None:
        is_syncing = False
        try:
            if not await self.settle_start(log):
                # Its recovery point would no longer say that it starts where it does.
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "where the log starts cannot be written: retry")
            # Of a log that begins anew everything goes: recovery must look for what is missing from its start on.
            self._cuts[log] = 0 if to_nothing else offset
            await self._lower_recovery_point(log)
            producers = ProducerState() if to_nothing else await self._producers_below(log, offset)
            await self._until_nobody_works_on(log, 0 if to_nothing else offset)
            if self._logs.get(log.partition) is not log or self._is_closing or not is_wanted():
                return None
            # From here to the end of the sync nobody else may sync it, and a stop waits.
            task = asyncio.current_task()
            assert task is not None
            self._syncing[log], is_syncing = task, True
            start_offset = log.start_offset
            cut = partial(log.restart_at, offset, past) if to_nothing else partial(log.truncate, offset, producers)
            removed = await self._cut_files(log, cut)
            await self._sync_cut(log)
            self.remove_later(log, removed)
            if self._clean_offsets.get(log.partition, 0) > log.end_offset:
                await self._note_clean_offset(log, log.end_offset)
            if log.start_offset < start_offset:
                # All below the start that is written down is taken for given up.
                await self._save_start_of_cut(log)
        except DiskFullError as error:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}: free space and retry")
        except TooManyOpenFilesError as error:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except KafkaError as error:
            return error
        except StorageError as error:
            if self._logs.get(log.partition) is log:
                self.fail(error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        finally:
            del self._cuts[log]
            log.is_being_cut = False
            if is_syncing:
                del self._syncing[log]
        return None

    async def _lower_recovery_point(self, log: PartitionLog) -> None:
        """Let recovery look at all that is to be cut, before anything can be there that is not synced."""
        async with self._checkpointing:
            if self._saved_points.get(log.partition, 0) > self._cuts[log]:
                await self._write_checkpoints()

    async def _producers_below(self, log: PartitionLog, offset: int) -> ProducerState:
        """The producers that a log has when it is cut; others have their turn while they are searched for on disk."""
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
        """Wait for a sync that is running and, where closed segments are to be cut, for compaction to be called off."""
        while True:
            if (running := self._syncing.get(log)) is not None:
                await asyncio.wait([running])
            elif log.is_being_cleaned and offset < log.segment_bases[-1]:
                await asyncio.sleep(_CLEANING_LOOKED_AT_SECONDS)
            else:
                return

    async def _cut_files(self, log: PartitionLog, cut: Callable[[], list[Segment]]) -> list[Segment]:
        """Cut the files of a log: what is begun has to be done, as a log that is cut by half takes no record."""
        while True:
            try:
                return cut()
            except TooManyOpenFilesError as error:
                logger.error("%s is not cut yet, retrying: %s", log.partition, error, extra={"repeats": "not cut"})
                await asyncio.sleep(_RETRY_SECONDS)

    async def _sync_cut(self, log: PartitionLog) -> None:
        while True:
            try:
                await self._sync_once(log)
                return
            except PassingStorageError as error:
                logger.error("%s is cut, which waits to be synced: %s", log.partition, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _save_start_of_cut(self, log: PartitionLog) -> None:
        while True:
            try:
                await self.save_checkpoints()
                return
            except PassingStorageError as error:
                logger.error("%s is cut, its new start waits to be written: %s", log.partition, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def take_out_expired(self, log: PartitionLog, take_out: Callable[[], list[Segment]]) -> list[Segment]:
        """Let retention take segments out of a log, once it is durable that the log starts after them."""
        removed = take_out()
        if not removed and log.waits_for_start:
            if not await self.settle_start(log):
                await self._vouch_for_next_segment(log)
            if self.holds(log):
                removed = take_out()
        return removed

    async def settle_start(self, log: PartitionLog) -> bool:
        """Make it durable where a log starts; False if the disk refuses for now."""
        metadata = log.metadata
        if (running := self._syncing.get(log)) is not None:
            await asyncio.wait([running], timeout=_RETRY_SECONDS)
        if metadata is None or metadata.is_durable:
            return True
        if log not in self._syncing and self._logs.get(log.partition) is log and not self._is_closing:
            task = self.tasks.spawn(self._write_start(log, metadata), f"start of {log.partition}")
            self._syncing[log] = task
            await asyncio.wait([task])
        return metadata.is_durable

    async def _vouch_for_next_segment(self, log: PartitionLog) -> None:
        """Let the oldest segment of a log go without a write: the disk may be full of what is to go.

        The recovery point on disk says as well that nothing is missing, if the one before is gone for good.
        """
        if log.metadata is None or log.segment_count < 2 or not self.holds(log):
            return
        path, next_base = f"{self.path}/{RECOVERY_POINTS}", log.segment_bases[1]

        def settle_names_and_look() -> int:
            log.opened_directory.sync()
            return read_offsets(self._disk, path).get(log.partition, 0)

        async with self._checkpointing:
            if await self._disk.offload(settle_names_and_look) >= next_base:
                log.metadata.vouched(next_base)

    async def _write_start(self, log: PartitionLog, metadata: PartitionMetadata) -> None:
        try:
            await self._disk.offload(lambda: metadata.write(sync=True))
        except PassingStorageError as error:
            logger.warning("%s: where the log starts is written later: %s", log.partition, error)
        except StorageError as error:
            if self._logs.get(log.partition) is log:
                self.fail(error)
        finally:
            del self._syncing[log]
            if log.needs_flush and not self._is_closing and self._logs.get(log.partition) is log:
                self._sync_soon(log)

    # --- compaction

    def first_dirty_offset(self, log: PartitionLog) -> int:
        """Where the part of a log begins that compaction has not been through."""
        known = self._clean_offsets.get(log.partition, 0)
        return known if log.start_offset <= known <= log.end_offset else log.start_offset

    def holds(self, log: PartitionLog) -> bool:
        """Whether a log is still the one of its partition here, on a disk that works."""
        return (
            self._logs.get(log.partition) is log
            and self.failure is None
            and not self._is_closing
            and not log.is_being_cut
        )

    async def cleaned_up_to(self, log: PartitionLog, offset: int) -> None:
        """Note, durably, that compaction has been through a log up to an offset."""
        if self.holds(log):
            await self._note_clean_offset(log, offset)

    async def _note_clean_offset(self, log: PartitionLog, offset: int) -> None:
        async with self._checkpointing:
            if self._logs.get(log.partition) is not log or self._is_closing:
                return
            self._clean_offsets[log.partition] = offset
            offsets = {partition: known for partition, known in self._clean_offsets.items() if partition in self._logs}
            self._saved_clean_offsets = offsets | self._saved_clean_offsets
            await self._disk.offload(lambda: write_offsets(self._disk, f"{self.path}/{CLEANER_OFFSETS}", offsets))
            self._saved_clean_offsets = offsets

    async def allow_gaps(self, log: PartitionLog, below: int) -> None:
        """Let a log have gaps below an offset, from the next swap on; recovery must know before there are any."""
        if below <= log.gaps.between_up_to or not self.holds(log):
            return
        # Recovery looks again at all that is beyond its recovery point, and would cut a log at the first damaged batch.
        # What compaction makes was synced before and is synced again.
        await self.save_checkpoints()
        gaps = Gaps(max(log.gaps.within_below, below), below)
        await self._disk.offload(lambda: write_gaps(log.opened_directory, gaps))
        if not self.holds(log):
            return
        # Once more, as the log may have learned of others meanwhile.
        log.allow_gaps(Gaps(max(log.gaps.within_below, below), max(log.gaps.between_up_to, below)))

    async def replace_segments(self, log: PartitionLog, old: Sequence[Segment]) -> bool:
        """Put the cleaned segment, whole and synced, in the place of those it was made of; whether it is there.

        A crash at any point leaves the old ones or the new one: its files are renamed twice, and each step is durable
        before the next. Nothing but a crash interrupts it.
        """
        new = Segment(self._disk, log.directory, old[0].base_offset, old[-1].end_offset, suffix=CLEANED_SUFFIX)
        task = self.tasks.spawn(self._swap(log, old, new), f"swap {log.partition}")
        self._swapping[task] = None
        task.add_done_callback(lambda done: self._swapping.pop(done, None))
        await asyncio.shield(task)
        return new.is_in_place and self.holds(log)

    async def _swap(self, log: PartitionLog, old: Sequence[Segment], new: Segment) -> None:
        try:
            if self._logs.get(log.partition) is not log:
                return
            new.change_suffix(SWAP_SUFFIX)
            await self._sync_names(log)
            if self._logs.get(log.partition) is not log:
                return
            log.replace_segments(old, new)
            await self._sync_names(log)
            if self._logs.get(log.partition) is not log:
                return
            new.change_suffix("")
            await self._sync_names(log)
        except StorageError as error:
            if self._logs.get(log.partition) is log:
                self.fail(error)
            return
        if not self._is_closing:
            self.remove_later(log, list(old))

    async def _sync_names(self, log: PartitionLog) -> None:
        await self._insist(log.opened_directory.sync, "a compacted segment is not in its place yet")

    async def discard_cleaned(self, log: PartitionLog) -> None:
        """Remove what an unfinished cleaning has left in a log's directory."""

        directory = log.opened_directory

        def work() -> None:
            for name in directory.list():
                if name.endswith(CLEANED_SUFFIX):
                    directory.remove(name)

        if self.holds(log):
            await self._disk.offload(work)


def _remove_all(directory: Directory, names: Sequence[str]) -> None:
    try:
        for name in names:
            directory.remove(name)
    except RemovedError:
        pass  # with all that was in it


def _ignore(log: PartitionLog) -> None:
    """Nobody listens yet."""


def _ignore_failure(directory: LogDirectory) -> None:
    """Nobody listens yet."""
