"""One partition on this broker: its role, its leader epoch, its high watermark, and whoever waits for it.

Readers never see beyond the high watermark, and an acknowledgement waits until the high watermark (acks=all) or
the local promise (acks=1) has passed its records. State changes without suspension: nothing here awaits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import UUID

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from tailrace.records.batch import check_produced
from tailrace.runtime.disk import DiskFullError, FileRange
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import Appended, PartitionLog

ACKS_ALL = -1


class DataWaiter(Protocol):
    """Somebody who wants to know that more can be read."""

    def more_to_read(self, size: int) -> None: ...


class Partition:
    """The leader's side of one partition."""

    def __init__(
        self, partition: TopicPartition, topic_id: UUID, log: PartitionLog, directory: LogDirectory, leader_epoch: int
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.directory = directory
        self.leader_epoch = leader_epoch
        self.isr_count = 1
        self.min_insync_replicas = 1
        self.high_watermark = log.promised_offset
        self._readable_bytes = 0
        self._appended_bytes = 0
        self._data_waiters: dict[DataWaiter, None] = {}
        self._promises: dict[asyncio.Future[None], int] = {}
        self._gone: KafkaError | None = None

    # --- writing

    def append(self, data: memoryview, acks: int) -> Appended:
        """Check one batch of a producer and append it."""
        self.require_served()
        if acks == ACKS_ALL and self.isr_count < self.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.partition} has {self.isr_count} in-sync replicas, min.insync.replicas is "
                f"{self.min_insync_replicas}",
            )
        header = check_produced(data)
        log = self.log
        try:
            appended = log.append(data, header, self.leader_epoch)
        except DiskFullError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}: free space and retry") from error
        except StorageError as error:
            self.directory.fail(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if not appended.is_duplicate:
            self._appended_bytes += len(data)
            self.advance()
        return appended

    def advance(self) -> None:
        """Move the high watermark to what the log promises, and tell those who wait."""
        promised = self.log.promised_offset
        if promised <= self.high_watermark:
            return
        self.high_watermark = promised
        size = self._appended_bytes - self._readable_bytes
        self._readable_bytes = self._appended_bytes
        if self._data_waiters:
            for waiter in list(self._data_waiters):
                waiter.more_to_read(size)
        if self._promises:
            for future in [future for future, offset in self._promises.items() if offset <= promised]:
                del self._promises[future]
                if not future.done():
                    future.set_result(None)

    def is_acknowledged(self, last_offset: int) -> bool:
        """Whether records up to an offset may be acknowledged to whoever asked for it."""
        return last_offset < self.high_watermark

    def wait_for(self, last_offset: int) -> asyncio.Future[None]:
        """A future that ends when records up to an offset may be acknowledged, or never can be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._gone is not None:
            future.set_exception(self._gone)
        elif self.is_acknowledged(last_offset):
            future.set_result(None)
        else:
            self._promises[future] = last_offset + 1
        return future

    # --- reading

    def read(self, offset: int, max_bytes: int, current_leader_epoch: int = NO_LEADER_EPOCH) -> FileRange | None:
        """Committed batches from an offset on, or None where there is nothing yet."""
        self.require_served()
        self.require_epoch(current_leader_epoch)
        try:
            return self.log.read(offset, max_bytes, self.high_watermark)
        except StorageError as error:
            self.directory.fail(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def require_epoch(self, claimed: int) -> None:
        """Refuse clients whose idea of the leader's epoch is not ours (KIP-320)."""
        if claimed in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if claimed < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a reader's log and this one part, if the reader's last epoch or offset is not in this one."""
        if last_fetched_epoch == NO_LEADER_EPOCH:
            return None
        epoch, end_offset = self.log.leader_epochs.end_offset_for(last_fetched_epoch, self.log.end_offset)
        if end_offset == NO_OFFSET:
            # With nothing to truncate to the reader would ask the same again for ever.
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.partition} has no epoch {last_fetched_epoch}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def watch(self, waiter: DataWaiter) -> None:
        self._data_waiters[waiter] = None

    def unwatch(self, waiter: DataWaiter) -> None:
        self._data_waiters.pop(waiter, None)

    # --- its end

    def require_served(self) -> None:
        """Refuse if the partition was deleted or its disk failed."""
        if self._gone is not None:
            raise self._gone
        if self.directory.failure is not None:
            self.directory.require_online()

    def close(self, reason: KafkaError) -> None:
        """Nothing more is served: everybody who waits is told why."""
        self._gone = reason
        for future in list(self._promises):
            if not future.done():
                future.set_exception(reason)
                future.exception()  # whoever asked may have gone: that is no reason to complain
        self._promises.clear()
        for waiter in list(self._data_waiters):
            waiter.more_to_read(1 << 62)
