"""The start offsets of the logs in one log directory, made durable before the segments below them are removed.

Invariant: no segment leaves a log before its new start is on disk, so a log never starts with a gap after a power
failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tailrace.errors import StorageError
from tailrace.runtime.disk import Disk, PassingStorageError
from tailrace.storage.log_home import RETRY_SECONDS, LogHome
from tailrace.storage.log_syncs import LogSyncs
from tailrace.storage.offset_checkpoints import OffsetCheckpoints
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.partition_metadata import PartitionMetadata
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.storage")


class LogStarts:
    """Writes log start offsets to disk."""

    def __init__(self, home: LogHome, disk: Disk, syncs: LogSyncs, checkpoints: OffsetCheckpoints) -> None:
        self._home = home
        self._disk = disk
        self._syncs = syncs
        self._checkpoints = checkpoints

    async def take_out_expired(self, log: PartitionLog, take_out: Callable[[], list[Segment]]) -> list[Segment]:
        """Let retention remove segments from a log, once the log start after them is durable."""
        removed = take_out()
        if not removed and log.retention.waits_for_start:
            if not await self.settle(log):
                await self._vouch_for_next_segment(log)
            if self._home.holds(log):
                removed = take_out()
        return removed

    async def settle(self, log: PartitionLog) -> bool:
        """Make a log's start durable; False if the disk refuses for now."""
        metadata = log.metadata
        if (running := self._syncs.running_for(log)) is not None:
            await asyncio.wait([running], timeout=RETRY_SECONDS)
        if metadata is None or metadata.is_durable:
            return True
        if self._syncs.running_for(log) is None and self._home.is_open(log) and not self._home.is_closing:
            task = self._home.tasks.spawn(self._write_start(log, metadata), f"start of {log.partition}")
            self._syncs.occupy(log, task)
            await asyncio.wait([task])
        return metadata.is_durable

    async def _vouch_for_next_segment(self, log: PartitionLog) -> None:
        """Allow the removal of a log's oldest segment without a write, since the disk may be full.

        A recovery point on disk beyond that segment also shows that no record is missing.
        """
        if log.metadata is None or log.segments.count < 2 or not self._home.holds(log):
            return
        next_base = log.segments.bases[1]
        if await self._checkpoints.recovery_point_on_disk(log) >= next_base:
            log.metadata.vouched(next_base)

    async def _write_start(self, log: PartitionLog, metadata: PartitionMetadata) -> None:
        try:
            await self._disk.offload(lambda: metadata.write(sync=True))
        except PassingStorageError as error:
            logger.warning("Cannot write the start of %s now, will retry later: %s", log.partition, error)
        except StorageError as error:
            if self._home.is_open(log):
                self._home.fail(error)
        finally:
            self._syncs.free(log)
            if log.needs_flush and not self._home.is_closing and self._home.is_open(log):
                self._syncs.sync_soon(log)
