"""Removes partition directories and segment files from one log directory.

Invariants: a directory or file first loses its name, durably, so that it is never taken for something else. Files are
deleted in the background, in turns. A directory that no topic owns is set aside and never deleted.
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
    """Everything that is being removed."""

    def __init__(self, home: LogHome, disk: Disk, random: Random, checkpoints: OffsetCheckpoints) -> None:
        self._home = home
        self._disk = disk
        self._random = random
        self._checkpoints = checkpoints
        #: Renamed directories of removed partitions whose files still exist.
        self._discarded: list[str] = []
        self._removal: asyncio.Task[None] | None = None

    def set_aside(self, partition: TopicPartition, owner: str = "no topic") -> None:
        """Rename a partition directory that belongs to another topic or to none, without deleting anything in it."""
        directory = f"{self._home.path}/{partition}"
        aside = self._unused_name(directory, STRAY_DIRECTORY_SUFFIX)
        try:
            self._disk.rename(directory, aside)
        except StorageError as error:
            self._home.fail(error)
            return
        logger.warning("%s belongs to %s: renamed it to %s; delete it if you do not need it", directory, owner, aside)

    def discard(self, directory: str) -> None:
        """Rename a directory to free its name; its files are deleted in the background."""
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
        """Delete the files of removed partitions, one directory at a time, to leave threads free for syncs."""
        while self._discarded:
            batch, self._discarded = self._discarded, []
            await self._checkpoints.forget_removed()
            # Until the new names are durable, a power failure may bring the old ones back with part of the files.
            await self._home.insist(lambda: self._disk.sync_directory(self._home.path), "cannot remove partitions")
            for aside in batch:
                await self._home.insist(partial(self._disk.remove, aside), "cannot remove a partition")

    def remove_later(self, log: PartitionLog, segments: list[Segment]) -> None:
        """Delete the files of segments that left a log, after a delay for readers."""
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
            # Otherwise each file would be opened again to keep it readable, for a segment that nobody reads.
            segment.release()
            await self._home.insist(partial(_remove_all, log.opened_directory, names), "cannot remove segments")

    def _unused_name(self, directory: str, suffix: str) -> str:
        return f"{self._home.path}/{unused_name(directory.rpartition('/')[2], suffix, self._random)}"


def _remove_all(directory: Directory, names: Sequence[str]) -> None:
    try:
        for name in names:
            directory.remove(name)
    except RemovedError:
        pass  # the directory was removed with everything in it
