"""The offsets that a log directory keeps on disk about its logs: four files of offsets by partition.

They hold the recovery point, the start, the high watermark and the end of the compacted part of each log. Invariants:
an entry of a removed partition never applies to a new one of that name; no recovery point is beyond a truncation in
progress. Only this module writes the files, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.disk import Disk, PassingStorageError
from tailrace.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    write_offsets,
)
from tailrace.storage.log_home import LogHome
from tailrace.storage.partition_log import PartitionLog

logger = logging.getLogger("tailrace.storage")

#: Log starts that change within this time are saved with one write.
_START_SAVING_SECONDS = 0.1

_Offsets = dict[TopicPartition, int]


class _OffsetFile:
    """One file: the offsets to write, and those on disk."""

    __slots__ = ("known", "path", "saved")

    def __init__(self, path: str) -> None:
        self.path = path
        #: For recovery points and log starts only those of logs that are not open: open logs have their own.
        self.known: _Offsets = {}
        #: Everything that the file may contain.
        self.saved: _Offsets = {}

    def read(self, disk: Disk) -> None:
        self.known = read_offsets(disk, self.path)
        self.saved = dict(self.known)

    def may_say(self, offsets: _Offsets) -> None:
        """From now on the file may contain these offsets, even of a log that is removed before the write ends."""
        self.saved = offsets | self.saved

    def write(self, disk: Disk, offsets: _Offsets) -> None:
        """Replace the file; notes this at once, because the disk may refuse another file of the same save."""
        write_offsets(disk, self.path, offsets)
        self.saved = offsets


class OffsetCheckpoints:
    """The offsets of one log directory that survive a restart."""

    def __init__(self, home: LogHome, disk: Disk) -> None:
        self._home = home
        self._disk = disk
        self._points = _OffsetFile(f"{home.path}/{RECOVERY_POINTS}")
        self._starts = _OffsetFile(f"{home.path}/{LOG_START_OFFSETS}")
        self._high_watermarks = _OffsetFile(f"{home.path}/{HIGH_WATERMARKS}")
        self._clean = _OffsetFile(f"{home.path}/{CLEANER_OFFSETS}")
        self._files = (self._points, self._starts, self._high_watermarks, self._clean)
        #: Logs being truncated, with the offset that their recovery points may not exceed.
        self._limits: dict[PartitionLog, int] = {}
        #: The write of log starts that is scheduled.
        self._start_saving: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """Read what the previous process saved."""
        for file in (self._points, self._high_watermarks, self._starts, self._clean):
            file.read(self._disk)

    # --- partitions that come and go

    def recovery_point_of(self, partition: TopicPartition) -> int:
        """The offset from which recovery must check a log that is about to be opened."""
        return self._points.known.get(partition, 0)

    def start_of(self, partition: TopicPartition) -> int:
        """The start of a log that is about to be opened."""
        return self._starts.known.get(partition, 0)

    def bound_recovery_point(self, log: PartitionLog) -> None:
        """Lower a recovery point on disk at once if recovery found that the log ends below it.

        New records are not synced, and the next recovery must check them. Rare: it takes damage, or a log truncated
        inside a gap.
        """
        if self._points.known.get(log.partition, 0) > log.end_offset:
            self._points.known[log.partition] = log.end_offset
            self.write_now()

    def opened(self, partition: TopicPartition) -> None:
        """A log is open, and from now on has its own recovery point and start."""
        self._points.known.pop(partition, None)
        self._starts.known.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the offsets of a removed log of this name."""
        for file in self._files:
            file.known.pop(partition, None)

    def has_outdated(self, partition: TopicPartition) -> bool:
        """Whether a file still has an entry of a removed partition of this name."""
        return partition not in self._home.logs and any(
            partition in file.saved and partition not in file.known for file in self._files
        )

    async def forget_removed(self) -> None:
        """Remove the entries of removed partitions from the files, so that no new topic of that name takes them over.

        If the disk refuses for now, opening a partition of that name removes them.
        """
        async with self._writing:
            offsets = self._all_offsets()
            try:
                await self._disk.offload(lambda: self._write_all(offsets))
            except PassingStorageError as error:
                logger.warning(
                    "%s: cannot remove old partitions from checkpoints now, will retry: %s", self._home.path, error
                )
                return
            except StorageError as error:
                self._home.fail(error)

    def write_now(self) -> None:
        """Write all files without yielding to other tasks; for what must be durable before a log is opened."""
        self._write_all(self._all_offsets())

    def _all_offsets(self) -> tuple[_Offsets, ...]:
        """The intended content of all files."""
        return *self._points_and_starts(), dict(self._high_watermarks.known), dict(self._clean.known)

    def _write_all(self, offsets: tuple[_Offsets, ...]) -> None:
        for file, content in zip(self._files, offsets, strict=True):
            if content != file.saved:
                file.write(self._disk, content)

    # --- recovery points and log starts

    async def save(self) -> None:
        """Write each log's recovery point and start; one call at a time, as all write the same two files."""
        async with self._writing:
            await self._write_points_and_starts()

    async def save_starts(self) -> None:
        """Try to save log starts; calls within a short time share one write."""
        if self._start_saving is None:
            self._start_saving = self._home.tasks.spawn(
                self._save_starts_soon(), f"save log starts in {self._home.path}"
            )
        await asyncio.shield(self._start_saving)

    async def _save_starts_soon(self) -> None:
        await asyncio.sleep(_START_SAVING_SECONDS)
        self._start_saving = None
        with suppress(StorageError):  # the periodic checkpoint saves them too
            await self.save()

    async def recovery_point_on_disk(self, log: PartitionLog) -> int:
        """A log's recovery point on disk, once the names in the log's directory are durable."""

        def settle_names_and_look() -> int:
            log.opened_directory.sync()
            return read_offsets(self._disk, self._points.path).get(log.partition, 0)

        async with self._writing:
            return await self._disk.offload(settle_names_and_look)

    def limit(self, log: PartitionLog, offset: int) -> None:
        """Keep the recovery points written for a log that is being truncated at or below an offset."""
        self._limits[log] = offset

    def lift_limit(self, log: PartitionLog) -> None:
        """The truncation of a log has ended."""
        del self._limits[log]

    async def settle_limit(self, log: PartitionLog) -> None:
        """Make recovery check everything that is to be truncated, before anything unsynced can be there."""
        async with self._writing:
            if self._points.saved.get(log.partition, 0) > self._limits[log]:
                await self._write_points_and_starts()

    def _points_and_starts(self) -> tuple[_Offsets, _Offsets]:
        logs = self._home.logs.values()
        # Logs that could not be opened keep their last known offset.
        points = self._points.known | {
            log.partition: min(log.flushed_offset, self._limits.get(log, log.flushed_offset)) for log in logs
        }
        return points, self._starts.known | {log.partition: log.start_offset for log in logs if log.start_offset > 0}

    async def _write_points_and_starts(self) -> None:
        points, starts = self._points_and_starts()
        self._points.may_say(points)
        self._starts.may_say(starts)

        def write() -> None:
            self._points.write(self._disk, points)
            self._starts.write(self._disk, starts)

        try:
            await self._disk.offload(write)
        except PassingStorageError:
            raise
        except StorageError as error:
            self._home.fail(error)
            raise
        for log in self._home.logs.values():
            log.saved_flushed_offset = points.get(log.partition, 0)
            # A log that was truncated during the write may now start earlier.
            if log.saved_start_offset < starts.get(log.partition, 0) <= log.start_offset:
                log.saved_start_offset = starts[log.partition]

    # --- high watermarks

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """The high watermark of a log at the last save."""
        return self._high_watermarks.known.get(partition, 0)

    async def save_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Save high watermarks, if any changed; logs not named keep their last one."""
        file = self._high_watermarks
        async with self._writing:
            here = self._home.logs
            known = file.known | {tp: offset for tp, offset in offsets.items() if tp in here}
            if known == file.saved:
                return
            file.may_say(known)
            logs = dict(here)
            try:
                await self._disk.offload(lambda: file.write(self._disk, known))
            except PassingStorageError:
                raise
            except StorageError as error:
                self._home.fail(error)
                raise
            # Drop logs that were removed in between.
            here = self._home.logs
            file.known = {
                tp: offset for tp, offset in known.items() if tp not in offsets or here.get(tp) is logs.get(tp)
            }

    # --- compaction

    def first_dirty_offset(self, log: PartitionLog) -> int:
        """The start of the part of a log that is not compacted yet."""
        known = self._clean.known.get(log.partition, 0)
        return known if log.start_offset <= known <= log.end_offset else log.start_offset

    async def cleaned_up_to(self, log: PartitionLog, offset: int) -> None:
        """Durably note that a log is compacted up to an offset."""
        if self._home.holds(log):
            await self._note_clean_offset(log, offset)

    async def was_cut(self, log: PartitionLog) -> None:
        """Durably note that a truncated log is compacted at most up to its end."""
        # After a refused write, only the file still has the former offset.
        known = max(offsets.get(log.partition, 0) for offsets in (self._clean.known, self._clean.saved))
        if known > log.end_offset:
            await self._note_clean_offset(log, log.end_offset)

    async def _note_clean_offset(self, log: PartitionLog, offset: int) -> None:
        file = self._clean
        async with self._writing:
            if not self._home.is_open(log) or self._home.is_closing:
                return
            file.known[log.partition] = offset
            logs = self._home.logs
            offsets = {partition: known for partition, known in file.known.items() if partition in logs}
            file.may_say(offsets)
            await self._disk.offload(lambda: file.write(self._disk, offsets))
