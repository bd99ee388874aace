"""What a log directory has written down of its logs: four files of offsets by partition.

Up to where each log is durable, where it starts, up to where it was committed and up to where compaction has been
through it. Invariants: nothing that is written down of a removed partition counts for a new one of its name, and no
recovery point is beyond a cut that is under way. One file is written at a time, and only by this module.
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

#: Log starts that change within this time are saved together.
_START_SAVING_SECONDS = 0.1

_Offsets = dict[TopicPartition, int]


class _OffsetFile:
    """One file: what is known for it, and what of that is on disk."""

    __slots__ = ("known", "path", "saved")

    def __init__(self, path: str) -> None:
        self.path = path
        #: Of recovery points and log starts only those of logs that are not open: the others say it themselves.
        self.known: _Offsets = {}
        #: All that the file may say.
        self.saved: _Offsets = {}

    def read(self, disk: Disk) -> None:
        self.known = read_offsets(disk, self.path)
        self.saved = dict(self.known)

    def may_say(self, offsets: _Offsets) -> None:
        """From now on this may be in the file, of a log too that is removed before the write is over."""
        self.saved = offsets | self.saved

    def write(self, disk: Disk, offsets: _Offsets) -> None:
        write_offsets(disk, self.path, offsets)


class OffsetCheckpoints:
    """The offsets of one log directory that outlive the process."""

    def __init__(self, home: LogHome, disk: Disk) -> None:
        self._home = home
        self._disk = disk
        self._points = _OffsetFile(f"{home.path}/{RECOVERY_POINTS}")
        self._starts = _OffsetFile(f"{home.path}/{LOG_START_OFFSETS}")
        self._high_watermarks = _OffsetFile(f"{home.path}/{HIGH_WATERMARKS}")
        self._clean = _OffsetFile(f"{home.path}/{CLEANER_OFFSETS}")
        self._files = (self._points, self._starts, self._high_watermarks, self._clean)
        #: Logs that are being cut, and where: none of their recovery points may be beyond.
        self._limits: dict[PartitionLog, int] = {}
        #: The write of log starts that is about to begin.
        self._start_saving: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """Know what the last process has written down."""
        for file in (self._points, self._high_watermarks, self._starts, self._clean):
            file.read(self._disk)

    # --- partitions that come and go

    def recovery_point_of(self, partition: TopicPartition) -> int:
        """From where on recovery has to look at a log that is about to be opened."""
        return self._points.known.get(partition, 0)

    def start_of(self, partition: TopicPartition) -> int:
        """Where a log that is about to be opened starts."""
        return self._starts.known.get(partition, 0)

    def bound_recovery_point(self, log: PartitionLog) -> None:
        """Write it down at once if recovery found less in a log than was durable.

        What is appended now is not synced, and the next recovery must look at it. Rare: damage, or a log that was cut
        where it had a gap.
        """
        if self._points.known.get(log.partition, 0) > log.end_offset:
            self._points.known[log.partition] = log.end_offset
            self.write_now()

    def opened(self, partition: TopicPartition) -> None:
        """The log of a partition is open, and says itself how far it is durable and where it starts."""
        self._points.known.pop(partition, None)
        self._starts.known.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """Know nothing any more of a log that had this name."""
        for file in self._files:
            file.known.pop(partition, None)

    def has_outdated(self, partition: TopicPartition) -> bool:
        """Whether something is written down of a partition of this name that was removed."""
        return partition not in self._home.logs and any(
            partition in file.saved and partition not in file.known for file in self._files
        )

    async def forget_removed(self) -> None:
        """Have nothing written down of partitions that were removed: it would be taken for a new topic's of that name.

        Where the disk refuses for now, opening a partition of such a name does it.
        """
        async with self._writing:
            offsets = self._all_offsets()
            try:
                await self._disk.offload(lambda: self._write_all(offsets))
            except PassingStorageError as error:
                logger.warning("%s: removed partitions are forgotten later: %s", self._home.path, error)
                return
            except StorageError as error:
                self._home.fail(error)
                return
            self._saved_all(offsets)

    def write_now(self) -> None:
        """Write everything down, without a turn for others; for what must be durable before a log is opened."""
        offsets = self._all_offsets()
        self._write_all(offsets)
        self._saved_all(offsets)

    def _all_offsets(self) -> tuple[_Offsets, ...]:
        """What all files are to hold."""
        return *self._points_and_starts(), dict(self._high_watermarks.known), dict(self._clean.known)

    def _write_all(self, offsets: tuple[_Offsets, ...]) -> None:
        for file, content in zip(self._files, offsets, strict=True):
            if content != file.saved:
                file.write(self._disk, content)

    def _saved_all(self, offsets: tuple[_Offsets, ...]) -> None:
        for file, content in zip(self._files, offsets, strict=True):
            file.saved = content

    # --- recovery points and log starts

    async def save(self) -> None:
        """Write down how far each log is durable and where it starts; one at a time, for it is the same two files."""
        async with self._writing:
            await self._write_points_and_starts()

    async def save_starts(self) -> None:
        """Try to save where logs start now; calls within a moment of each other share one write."""
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
        """What the file says of a log, once the names in the log's directory are durable."""

        def settle_names_and_look() -> int:
            log.opened_directory.sync()
            return read_offsets(self._disk, self._points.path).get(log.partition, 0)

        async with self._writing:
            return await self._disk.offload(settle_names_and_look)

    def limit(self, log: PartitionLog, offset: int) -> None:
        """Let no recovery point of a log that is being cut be written beyond an offset."""
        self._limits[log] = offset

    def lift_limit(self, log: PartitionLog) -> None:
        """The cut of a log is over."""
        del self._limits[log]

    async def settle_limit(self, log: PartitionLog) -> None:
        """Let recovery look at all that is to be cut, before anything can be there that is not synced."""
        async with self._writing:
            if self._points.saved.get(log.partition, 0) > self._limits[log]:
                await self._write_points_and_starts()

    def _points_and_starts(self) -> tuple[_Offsets, _Offsets]:
        logs = self._home.logs.values()
        # Logs that could not be opened keep what was known of them.
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
        self._points.saved, self._starts.saved = points, starts
        for log in self._home.logs.values():
            # A log that was truncated during the write starts earlier by now.
            if log.saved_start_offset < starts.get(log.partition, 0) <= log.start_offset:
                log.saved_start_offset = starts[log.partition]

    # --- high watermarks

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """Up to where a log was known to be committed when that was last written down."""
        return self._high_watermarks.known.get(partition, 0)

    async def save_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write down up to where logs are committed, unless nothing is new; others keep what was known of them."""
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
            file.saved = known
            # Of logs that were removed meanwhile nothing is known any more.
            here = self._home.logs
            file.known = {
                tp: offset for tp, offset in known.items() if tp not in offsets or here.get(tp) is logs.get(tp)
            }

    # --- compaction

    def first_dirty_offset(self, log: PartitionLog) -> int:
        """Where the part of a log begins that compaction has not been through."""
        known = self._clean.known.get(log.partition, 0)
        return known if log.start_offset <= known <= log.end_offset else log.start_offset

    async def cleaned_up_to(self, log: PartitionLog, offset: int) -> None:
        """Note, durably, that compaction has been through a log up to an offset."""
        if self._home.holds(log):
            await self._note_clean_offset(log, offset)

    async def was_cut(self, log: PartitionLog) -> None:
        """Note, durably, that compaction has been through no more of a log than is left of it."""
        if self._clean.known.get(log.partition, 0) > log.end_offset:
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
            file.saved = offsets
