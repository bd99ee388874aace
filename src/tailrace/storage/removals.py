"""What leaves one log directory: the directories of partitions, and the files of segments.

Invariants: what is removed loses its name first, and durably, so that nothing of it is taken for something else; it is
removed beside the loop, in turns. What no topic owns is set aside and never removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from random import Random

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.disk import Directory, Disk, RemovedError
from tailrace.storage.directory_names import DELETED_DIRECTORY_SUFFIX, STRAY_DIRECTORY_SUFFIX, unused_name
from tailrace.storage.log_home import LogHome
from tailrace.storage.offset_checkpoints import OffsetCheckpoints
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.storage")


class Removals:
    """What is on its way out."""

    def __init__(self, home: LogHome, disk: Disk, random: Random, checkpoints: OffsetCheckpoints) -> None:
        self._home = home
        self._disk = disk
        self._random = random
        self._checkpoints = checkpoints
        #: Directories of removed partitions, under the names they have now, whose files are still there.
        self._discarded: list[str] = []
        self._removal: asyncio.Task[None] | None = None

    def set_aside(self, partition: TopicPartition, owner: str = "no topic") -> None:
        """Rename a partition's directory that is not this topic's, or no topic's; nothing in it is removed."""
        directory = f"{self._home.path}/{partition}"
        aside = self._unused_name(directory, STRAY_DIRECTORY_SUFFIX)
        try:
            self._disk.rename(directory, aside)
        except StorageError as error:
            self._home.fail(error)
            return
        logger.warning("%s belongs to %s; it is now %s, remove it if nobody misses it", directory, owner, aside)

    def discard(self, directory: str) -> None:
        """Take a directory out of the way of a new one of its name; its files are removed in the background."""
        aside = self._unused_name(directory, DELETED_DIRECTORY_SUFFIX)
        try:
            if self._disk.exists(directory):
                self._disk.rename(directory, aside)
        except StorageError as error:
            self._home.fail(error)
            return
        self._discarded.append(aside)
        if self._removal is None or self._removal.done():
            self._removal = self._home.tasks.spawn(self._remove_discarded(), f"remove partitions in {self._home.path}")

    async def _remove_discarded(self) -> None:
        """Remove the files of removed partitions, one directory at a time, so that syncs find a thread that is free."""
        while self._discarded:
            batch, self._discarded = self._discarded, []
            await self._checkpoints.forget_removed()
            # Until the new names are durable a power cut brings the old ones back, with whatever is left of the files.
            await self._home.insist(lambda: self._disk.sync_directory(self._home.path), "partitions are not removed")
            for aside in batch:
                await self._home.insist(partial(self._disk.remove, aside), "a partition is not removed")

    def remove_later(self, log: PartitionLog, segments: list[Segment]) -> None:
        """Remove the files of segments that left a log, once readers have had time to finish."""
        if segments:
            self._home.tasks.spawn(
                self._remove_segments(log, segments, log.config.file_delete_delay_ms / 1000),
                f"remove {log.partition}",
            )

    async def _remove_segments(self, log: PartitionLog, segments: list[Segment], delay: float) -> None:
        await asyncio.sleep(delay)
        for segment in segments:
            if not self._home.is_open(log):
                return
            names = segment.file_names
            # Else each file would have to be opened again, to stay readable to a segment that nobody reads.
            segment.release()
            await self._home.insist(partial(_remove_all, log.opened_directory, names), "segments are not removed")

    def _unused_name(self, directory: str, suffix: str) -> str:
        return f"{self._home.path}/{unused_name(directory.rpartition('/')[2], suffix, self._random)}"


def _remove_all(directory: Directory, names: Sequence[str]) -> None:
    try:
        for name in names:
            directory.remove(name)
    except RemovedError:
        pass  # with all that was in it
