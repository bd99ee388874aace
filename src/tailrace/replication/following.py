"""A replica that follows: it appends what its leader sends, and truncates what its leader does not have.

Invariants: records are appended exactly as the leader sent them; an offset once known to be committed stays committed;
a truncation is durable before anything is appended after it. How records arrive is not its business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.cluster.image import NO_LEADER
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_LEADER_EPOCH, NO_OFFSET
from tailrace.runtime.disk import PassingStorageError
from tailrace.storage.partition_log import LogPast

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition

logger = logging.getLogger("tailrace.replication")


class Following:
    """One partition while another broker leads it."""

    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def fetch_position(self) -> tuple[int, int]:
        """The offset at which a follower continues, and the leader epoch of its last record."""
        partition = self._partition
        log = partition.log
        if log.start_offset >= log.end_offset:
            # An empty log cannot diverge from the leader's.
            return log.end_offset, NO_LEADER_EPOCH
        return log.end_offset, log.leader_epochs.epoch_at(log.end_offset - 1)

    def last_position(self) -> tuple[int, int]:
        """The log end offset and the leader epoch of the last record, even if retention has removed that record.

        An election compares these: a log that is empty because everything expired or was archived is not behind.
        """
        partition = self._partition
        log = partition.log
        if log.start_offset >= log.end_offset:
            return log.end_offset, log.leader_epochs.latest
        return self.fetch_position()

    @property
    def may_fetch(self) -> bool:
        """Whether to fetch more: the flush policy is met for everything that a fetch would confirm."""
        partition = self._partition
        log = partition.log
        return not log.is_being_cut and log.promised_offset >= log.end_offset

    def append_fetched(self, data: memoryview, high_watermark: int, leader_log_start: int) -> None:
        """Append exactly what the leader sent, and take over its high watermark and log start offset."""
        partition = self._partition
        self._require_following()
        log = partition.log
        if len(data):
            try:
                log.append_replicated(data, high_watermark)
            except PassingStorageError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.with_advice) from error
            except StorageError as error:
                partition.directory.fail(error)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        # A committed offset stays committed, even if a newly elected leader does not know it yet.
        partition.high_watermark = max(partition.high_watermark, min(high_watermark, log.end_offset))
        log.advance_start(min(leader_log_start, partition.high_watermark))

    def _require_following(self) -> None:
        partition = self._partition
        partition.require_served()
        if partition.is_leader or partition.leader_id == NO_LEADER:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker {partition.broker_id} is not a follower of {partition.partition}.",
            )
        if partition.log.is_being_cut:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition.partition} is being truncated; retry.")

    async def truncate_to(self, epoch: int, end_offset: int) -> None:
        """Truncate what the leader does not have, given where an epoch ends in its log; durable on return."""
        partition = self._partition
        self._require_following()
        log = partition.log
        _, own_end = log.leader_epochs.end_offset_for(epoch, log.end_offset)
        offset = min(end_offset, log.end_offset if own_end == NO_OFFSET else own_end)
        await self.truncate_at(max(0, offset))

    async def truncate_at(self, offset: int) -> None:
        """Truncate the log to an offset, where the leader's log ends; durable on return."""
        partition = self._partition
        self._require_following()
        log = partition.log
        if offset >= log.end_offset:
            log.leader_epochs.cut(log.end_offset)
            return
        if offset < partition.high_watermark:
            logger.error(
                "%s is truncated to %d by broker %d, its leader in epoch %d: "
                "records %d to %d were committed and are lost",
                partition.partition,
                offset,
                partition.leader_id,
                partition.leader_epoch,
                offset,
                partition.high_watermark - 1,
            )
        else:
            logger.info(
                "%s: truncating records %d to %d, which broker %d, its leader in epoch %d, does not have",
                partition.partition,
                offset,
                log.end_offset - 1,
                partition.leader_id,
                partition.leader_epoch,
            )
        await self._cut(lambda is_wanted: partition.directory.cuts.truncate(log, offset, is_wanted))

    async def start_anew_at(self, offset: int, past: LogPast | None = None) -> None:
        """Delete the log and start an empty one where the leader's log starts; durable on return.

        `past` is what the leader knows of earlier records: their producers, and their epochs if they are in the
        archive.
        """
        partition = self._partition
        self._require_following()
        if offset < partition.high_watermark:
            logger.error(
                "%s restarts at %d, where the log of broker %d starts, its leader in epoch %d: "
                "records from there to %d were committed and are lost",
                partition.partition,
                offset,
                partition.leader_id,
                partition.leader_epoch,
                partition.high_watermark - 1,
            )
        else:
            logger.info("%s restarts at %d, where its leader's log starts", partition.partition, offset)
        await self._cut(lambda is_wanted: partition.directory.cuts.restart(partition.log, offset, is_wanted, past))
        if partition.log.start_offset == partition.log.end_offset == offset:
            partition.high_watermark = offset

    async def _cut(self, start: Callable[[Callable[[], bool]], asyncio.Task[KafkaError | None]]) -> None:
        """Truncate the log unless the role changes first; cancelling the caller does not interrupt it."""
        partition = self._partition
        leader_epoch = partition.leader_epoch

        def is_wanted() -> bool:
            return partition.gone is None and not partition.is_leader and partition.leader_epoch == leader_epoch

        def ended(_: asyncio.Task[KafkaError | None]) -> None:
            partition.high_watermark = min(partition.high_watermark, partition.log.end_offset)
            partition.settle_role()

        task = start(is_wanted)
        task.add_done_callback(ended)
        partition.settle_role()
        refusal = await asyncio.shield(task)
        # The event loop runs the callback in its next iteration at the earliest.
        ended(task)
        if refusal is not None:
            raise refusal
