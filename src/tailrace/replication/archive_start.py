"""A leader whose log ends before its archive does: it goes on where the archive ends.

That happens where a disk was lost, or the end of a log with a machine's power, or in an unclean election. Invariant:
offsets of archived records are not used again, so nothing is appended before the log begins behind them.
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

#: How long a log that could not begin after its archive waits before it tries again.
_RETRY_SECONDS = 0.5


class ArchiveStart:
    """The beginning of one partition's log after its archive."""

    __slots__ = ("_partition", "is_under_way")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.is_under_way = False

    def begin(self) -> None:
        """Have the log begin anew where the archive ends."""
        partition = self._partition
        logger.error(
            "%s ends at %d here but is archived up to %d: continuing there, earlier records come from the archive",
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
                past = LogPast(log.leader_epochs.entries, log.producers)
                refusal = await partition.directory.cuts.restart(log, offset, is_wanted, past)
            except KafkaError as error:  # it is still being cut for its former leader
                refusal = error
            if refusal is not None:
                logger.error("%s cannot begin after its archive: %s; retrying", partition.partition, refusal)
                await asyncio.sleep(_RETRY_SECONDS)
        if is_wanted():
            # Also where nobody follows: who asks for an epoch of archived records is told that it ended here.
            log.leader_epochs.assign(leader_epoch, log.end_offset)
            self.is_under_way = False
            partition.high_watermark = max(partition.high_watermark, offset)
            partition.settle_role()
            partition.advance()
