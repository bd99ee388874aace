"""A leader whose log ends before its archive does: it restarts the log at the end of the archive.

This happens after the loss of a disk, after a power failure that lost the end of a log, and after an unclean election.
Invariant: offsets of archived records are never reused, so nothing is appended until the log starts after them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tailrace.errors import KafkaError
from tailrace.storage.partition_log import LogPast

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition

logger = logging.getLogger("tailrace.replication")

#: Delay between attempts to restart a log after its archive.
_RETRY_SECONDS = 0.5


class ArchiveStart:
    """Restarts one partition's log at the end of its archive."""

    __slots__ = ("_partition", "is_under_way")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.is_under_way = False

    def begin(self) -> None:
        """Start to restart the log at the end of the archive."""
        partition = self._partition
        logger.error(
            "%s: the log ends at offset %d but the archive at %d; continuing at the archive's end, earlier records are "
            "read from the archive",
            partition.partition,
            partition.log.end_offset,
            partition.archived_end,
        )
        self.is_under_way = True
        partition.directory.tasks.spawn(self._restart(), f"begin {partition.partition} after its archive")

    async def _restart(self) -> None:
        partition = self._partition
        log, offset, leader_epoch = partition.log, partition.archived_end, partition.leader_epoch

        def is_wanted() -> bool:
            return partition.gone is None and partition.is_leader and partition.leader_epoch == leader_epoch

        refusal: KafkaError | None = None
        while is_wanted() and log.end_offset < offset:
            try:
                # Only what is stable is archived, so everything that is open here has ended there.
                past = LogPast(log.leader_epochs.entries, log.producers.all_ended())
                refusal = await partition.directory.cuts.restart(log, offset, is_wanted, past)
            except KafkaError as error:  # the log is still being truncated to a former leader's
                refusal = error
            if refusal is not None:
                logger.error("Cannot restart %s after its archive: %s; retrying", partition.partition, refusal)
                await asyncio.sleep(_RETRY_SECONDS)
        if is_wanted():
            # Even without followers: a client that asks for an epoch of archived records learns that it ended here.
            log.leader_epochs.assign(leader_epoch, log.end_offset)
            self.is_under_way = False
            partition.high_watermark = max(partition.high_watermark, offset)
            partition.settle_role()
            partition.advance()
