"""Segment swaps in one log directory: a cleaned segment replaces those it was made from.

Invariants: a crash at any point leaves the old segments or the new one, because each step is durable before the next;
recovery knows that a log may have gaps before it has any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailrace.errors import StorageError
from tailrace.runtime.disk import Disk
from tailrace.storage.checkpoints import Gaps, write_gaps
from tailrace.storage.log_home import LogHome
from tailrace.storage.offset_checkpoints import OffsetCheckpoints
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.removals import Removals
from tailrace.storage.segment import CLEANED_SUFFIX, SWAP_SUFFIX, Segment


class SegmentSwaps:
    """The swaps in progress."""

    def __init__(self, home: LogHome, disk: Disk, checkpoints: OffsetCheckpoints, removals: Removals) -> None:
        self._home = home
        self._disk = disk
        self._checkpoints = checkpoints
        self._removals = removals
        self._running: dict[asyncio.Task[None], None] = {}

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """The swaps in progress; only a crash may interrupt them."""
        return list(self._running)

    async def allow_gaps(self, log: PartitionLog, below: int) -> None:
        """Allow gaps below an offset from the next swap on, so that recovery knows before there are any."""
        if below <= log.gaps.between_up_to or not self._home.holds(log):
            return
        # Recovery checks everything beyond its recovery point, and would truncate a log at the first damaged batch.
        # The segments that compaction replaces were synced, and so are the new ones.
        await self._checkpoints.save()
        gaps = Gaps(max(log.gaps.within_below, below), below)
        await self._disk.offload(lambda: write_gaps(log.opened_directory, gaps))
        if not self._home.holds(log):
            return
        # Once more, because the log may have learned of other gaps in between.
        log.allow_gaps(Gaps(max(log.gaps.within_below, below), max(log.gaps.between_up_to, below)))

    async def replace(self, log: PartitionLog, old: Sequence[Segment]) -> bool:
        """Replace segments with the cleaned one, which is complete and synced; returns whether it is in place.

        A crash at any point leaves the old segments or the new one: its files are renamed twice, and each step is
        durable before the next. Only a crash interrupts it.
        """
        new = Segment(self._disk, log.directory, old[0].base_offset, old[-1].end_offset, suffix=CLEANED_SUFFIX)
        task = self._home.tasks.spawn(self._swap(log, old, new), f"swap {log.partition}")
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        await asyncio.shield(task)
        return new.is_in_place and self._home.holds(log)

    async def _swap(self, log: PartitionLog, old: Sequence[Segment], new: Segment) -> None:
        try:
            if not self._home.is_open(log):
                return
            new.change_suffix(SWAP_SUFFIX)
            await self._sync_names(log)
            if not self._home.is_open(log):
                return
            log.replace_segments(old, new)
            await self._sync_names(log)
            if not self._home.is_open(log):
                return
            new.change_suffix("")
            await self._sync_names(log)
        except StorageError as error:
            if self._home.is_open(log):
                self._home.fail(error)
            return
        if not self._home.is_closing:
            self._removals.remove_later(log, list(old))

    async def _sync_names(self, log: PartitionLog) -> None:
        await self._home.insist(log.opened_directory.sync, "cannot swap in a compacted segment")

    async def discard_cleaned(self, log: PartitionLog) -> None:
        """Remove the files that an unfinished cleaning left in a log's directory."""

        directory = log.opened_directory

        def work() -> None:
            for name in directory.list():
                if name.endswith(CLEANED_SUFFIX):
                    directory.remove(name)

        if self._home.holds(log):
            await self._disk.offload(work)
