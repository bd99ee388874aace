"""A replica that follows: what it takes from its leader, and what it cuts off that its leader does not have.

Invariants: records are appended exactly as the leader sent them; what was once known to be committed stays so; a cut is
durable before anything is appended after it. It must not know how records come here.
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
    """What one partition does while another broker leads it."""

    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def fetch_position(self) -> tuple[int, int]:
        """From where a follower goes on, and the leader epoch of the last record that it has."""
        partition = self._partition
        log = partition.log
        if log.start_offset >= log.end_offset:
            # Nothing is there that could be other than the leader's.
            return log.end_offset, NO_LEADER_EPOCH
        return log.end_offset, log.leader_epochs.epoch_at(log.end_offset - 1)

    def last_position(self) -> tuple[int, int]:
        """Where the log ends, and the leader epoch of its last record, also where retention has taken that out.

        An election goes by it: a log that is empty because everything was old, or is archived, is not behind.
        """
        partition = self._partition
        log = partition.log
        if log.start_offset >= log.end_offset:
            return log.end_offset, log.leader_epochs.latest
        return self.fetch_position()

    @property
    def may_fetch(self) -> bool:
        """Whether it is time to ask for more: the flush policy is met for all that a fetch would confirm."""
        partition = self._partition
        log = partition.log
        return not log.is_being_cut and log.promised_offset >= log.end_offset

    def append_fetched(self, data: memoryview, high_watermark: int, leader_log_start: int) -> None:
        """Append what the leader sent, exactly as it is, and learn how far it is committed and where the log starts."""
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
        # What was once known to be committed stays so, whatever a leader that was elected lately knows.
        partition.high_watermark = max(partition.high_watermark, min(high_watermark, log.end_offset))
        log.advance_start(min(leader_log_start, partition.high_watermark))

    def _require_following(self) -> None:
        partition = self._partition
        partition.require_served()
        if partition.is_leader or partition.leader_id == NO_LEADER:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker {partition.broker_id} does not follow in {partition.partition}.",
            )
        if partition.log.is_being_cut:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition.partition} is being cut.")

    async def truncate_to(self, epoch: int, end_offset: int) -> None:
        """Cut off what the leader does not have, given where it says that an epoch ended; durable at the end."""
        partition = self._partition
        self._require_following()
        log = partition.log
        _, own_end = log.leader_epochs.end_offset_for(epoch, log.end_offset)
        offset = min(end_offset, log.end_offset if own_end == NO_OFFSET else own_end)
        await self.truncate_at(max(0, offset))

    async def truncate_at(self, offset: int) -> None:
        """Cut off everything from an offset on, because the leader's log ends there; durable at the end."""
        partition = self._partition
        self._require_following()
        log = partition.log
        if offset >= log.end_offset:
            log.leader_epochs.cut(log.end_offset)
            return
        if offset < partition.high_watermark:
            logger.error(
                "%s is cut to %d by broker %d, its leader in epoch %d: records %d to %d were committed and are lost",
                partition.partition,
                offset,
                partition.leader_id,
                partition.leader_epoch,
                offset,
                partition.high_watermark - 1,
            )
        else:
            logger.info(
                "%s: records %d to %d are cut off, broker %d does not have them, its leader in epoch %d",
                partition.partition,
                offset,
                log.end_offset - 1,
                partition.leader_id,
                partition.leader_epoch,
            )
        await self._cut(lambda is_wanted: partition.directory.cuts.truncate(log, offset, is_wanted))

    async def start_anew_at(self, offset: int, past: LogPast | None = None) -> None:
        """Drop the log and begin an empty one where the leader's log starts; durable at the end.

        What the leader knows of before comes with it: producers, and epochs where the records are in the archive.
        """
        partition = self._partition
        self._require_following()
        if offset < partition.high_watermark:
            logger.error(
                "%s begins anew at %d, where the log of broker %d starts, its leader in epoch %d: "
                "records from there to %d were committed and are lost",
                partition.partition,
                offset,
                partition.leader_id,
                partition.leader_epoch,
                partition.high_watermark - 1,
            )
        else:
            logger.info("%s begins anew at %d, where its leader's log starts", partition.partition, offset)
        await self._cut(lambda is_wanted: partition.directory.cuts.restart(partition.log, offset, is_wanted, past))
        if partition.log.start_offset == partition.log.end_offset == offset:
            partition.high_watermark = offset

    async def _cut(self, start: Callable[[Callable[[], bool]], asyncio.Task[KafkaError | None]]) -> None:
        """Have the log cut, unless the role changes first. A cancelled caller does not interrupt the cut."""
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
        # The callback is called in the next turn of the loop at the earliest.
        ended(task)
        if refusal is not None:
            raise refusal
