"""One partition on this broker: its role, its leader epoch, its high watermark, and whoever waits for it.

Readers never see beyond the high watermark, and an acknowledgement waits until the high watermark (acks=all) or
the local promise (acks=1) has passed its records. Batches enter the log in the order in which they came, also where
some have to be prepared beside the event loop first. State changes without suspension: only that preparation awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from tailrace.records.batch import BatchHeader, check_produced
from tailrace.replication.preparation import prepare, prepare_at_once
from tailrace.replication.traffic import TopicTraffic
from tailrace.runtime.disk import DiskFullError, FileRange
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import Appended, PartitionLog

ACKS_ALL = -1


class DataWaiter(Protocol):
    """Somebody who wants to know that more can be read."""

    def more_to_read(self, size: int) -> None: ...


class _Turn(NamedTuple):
    """A batch that waits to be prepared and appended, and who is told what became of it."""

    data: bytearray
    header: BatchHeader
    appended: asyncio.Future[Appended]


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
        #: Whether only brokers write to it.
        self.is_internal = partition.topic in INTERNAL_TOPICS
        self.isr_count = 1
        self.min_insync_replicas = 1
        #: Shared by the partitions of a topic, once they have been told so.
        self.traffic = TopicTraffic()
        self.high_watermark = log.promised_offset
        self._readable_bytes = 0
        self._appended_bytes = 0
        self._data_waiters: dict[DataWaiter, None] = {}
        self._promises: dict[asyncio.Future[None], int] = {}
        # Batches that are prepared before they are appended, and all that came after them.
        self._turns: deque[_Turn] = deque()
        self._gone: KafkaError | None = None

    # --- writing

    def append(self, data: memoryview, acks: int) -> Appended | asyncio.Future[Appended]:
        """Check one batch of a producer and append it: now or, where it has to be prepared first, in its turn."""
        self.require_served()
        if acks == ACKS_ALL and self.isr_count < self.min_insync_replicas:
            raise self._too_few_replicas()
        header = check_produced(data)
        if self.log.config.looks_into_batches or self._turns:
            return self._append_prepared(data, header)
        try:
            return self._append(data, header)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_TIMESTAMP:
                raise
            # Only its records tell which of them are too new.
            return self._append_prepared(data, header)

    def append_own(self, data: memoryview, acks: int) -> Appended:
        """Append a batch that this broker made itself, in which nothing has to be looked for or changed."""
        self.require_served()
        if acks == ACKS_ALL and self.isr_count < self.min_insync_replicas:
            raise self._too_few_replicas()
        return self._append(data, check_produced(data))

    def _too_few_replicas(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{self.partition} has {self.isr_count} in-sync replicas, min.insync.replicas is "
            f"{self.min_insync_replicas}",
        )

    def _append(self, data: memoryview | bytearray, header: BatchHeader) -> Appended:
        try:
            appended = self.log.append(data, header, self.leader_epoch)
        except DiskFullError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}: free space and retry") from error
        except StorageError as error:
            self.directory.fail(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if not appended.is_duplicate:
            size = len(data)
            self._appended_bytes += size
            traffic = self.traffic
            traffic.bytes_in += size
            traffic.records_in += header.record_count
            self.advance()
        return appended

    def _append_prepared(self, data: memoryview, header: BatchHeader) -> Appended | asyncio.Future[Appended]:
        if not self._turns:
            prepared = prepare_at_once(self.log, data, header)
            if prepared is not None:
                return self._append(*prepared)
        turn = _Turn(bytearray(data), header, asyncio.get_running_loop().create_future())
        self._turns.append(turn)
        if len(self._turns) == 1:
            self.directory.tasks.spawn(self._take_turns(), f"prepare batches of {self.partition}")
        return turn.appended

    async def _take_turns(self) -> None:
        """Prepare and append the waiting batches one after another; what one comes to is no other's business."""
        while self._turns:
            data, header, appended = self._turns[0]
            try:
                prepared = await prepare(self.log, self.directory.offload, data, header)
                self.require_served()
                result = self._append(*prepared)
                if not appended.done():
                    appended.set_result(result)
            except Exception as error:  # noqa: BLE001  told to whoever asked
                _refuse(appended, error)
            if self._turns:  # else the partition was closed meanwhile
                self._turns.popleft()

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
            _refuse(future, reason)
        self._promises.clear()
        for turn in self._turns:
            _refuse(turn.appended, reason)
        self._turns.clear()
        for waiter in list(self._data_waiters):
            waiter.more_to_read(1 << 62)


def _refuse(future: asyncio.Future[Any], reason: Exception) -> None:
    if not future.done():
        future.set_exception(reason)
        future.exception()  # whoever asked may have gone: that is no reason to complain
