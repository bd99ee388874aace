"""The swaps of segments in one log directory: what compaction made takes the place of what it was made of.

Invariants: a crash at any point leaves the old segments or the new one, as each step is durable before the next;
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
    """The swaps that are under way."""

    def __init__(self, home: LogHome, disk: Disk, checkpoints: OffsetCheckpoints, removals: Removals) -> None:
        self._home = home
        self._disk = disk
        self._checkpoints = checkpoints
        self._removals = removals
        self._running: dict[asyncio.Task[None], None] = {}

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """The swaps that run now; nothing but a crash may interrupt them."""
        return list(self._running)

    async def allow_gaps(self, log: PartitionLog, below: int) -> None:
        """Let a log have gaps below an offset, from the next swap on; recovery must know before there are any."""
        if below <= log.gaps.between_up_to or not self._home.holds(log):
            return
        # Recovery looks again at all that is beyond its recovery point, and would cut a log at the first damaged batch.
        # What compaction makes was synced before and is synced again.
        await self._checkpoints.save()
        gaps = Gaps(max(log.gaps.within_below, below), below)
        await self._disk.offload(lambda: write_gaps(log.opened_directory, gaps))
        if not self._home.holds(log):
            return
        # Once more, as the log may have learned of others meanwhile.
        log.allow_gaps(Gaps(max(log.gaps.within_below, below), max(log.gaps.between_up_to, below)))

    async def replace(self, log: PartitionLog, old: Sequence[Segment]) -> bool:
        """Put the cleaned segment, whole and synced, in the place of those it was made of; whether it is there.

        A crash at any point leaves the old ones or the new one: its files are renamed twice, and each step is durable
        before the next. Nothing but a crash interrupts it.
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
        await self._home.insist(log.opened_directory.sync, "a compacted segment is not in its place yet")

    async def discard_cleaned(self, log: PartitionLog) -> None:
        """Remove what an unfinished cleaning has left in a log's directory."""

        directory = log.opened_directory

        def work() -> None:
            for name in directory.list():
                if name.endswith(CLEANED_SUFFIX):
                    directory.remove(name)

        if self._home.holds(log):
            await self._disk.offload(work)
