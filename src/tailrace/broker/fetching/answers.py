"""What fetches of clients and of followers share: waiting for more records, and building a response.

It must not know who may read what: the caller decides that. Responses are built from the protocol's classes, for the
reason in `sessions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from tailrace.broker.fetching.sessions import PartitionKey, TopicKey
from tailrace.broker.network.request_memory import FREE_BYTES
from tailrace.broker.services import Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Reading
from tailrace.replication.traffic import TopicTraffic
from tailrace.runtime.disk import FileRange
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    PartitionData,
)

#: Below this size, a copy is faster than a second system call.
_READ_INLINE_BYTES = 32 * 1024
#: The most bytes of a response that are read into memory, where they stay until the client receives them.
_READ_INLINE_TOTAL_BYTES = 1 << 20
_EVERYTHING = 1 << 62


class Cold(NamedTuple):
    """Records that must be loaded into memory before they are sent."""

    partition: Partition
    data: PartitionData
    part: FileRange


class FetchWaiter:
    """A fetch that waits for more bytes; the partitions that it watches notify it."""

    def __init__(self, missing: int, loop: asyncio.AbstractEventLoop) -> None:
        self._missing = missing
        self._loop = loop
        self._enough: asyncio.Future[None] = loop.create_future()

    def more_to_read(self, size: int) -> None:
        self._missing -= size
        if self._missing <= 0 and not self._enough.done():
            self._enough.set_result(None)

    def end(self) -> None:
        """End the wait."""
        self.more_to_read(_EVERYTHING)

    async def wait(self, seconds: float) -> None:
        timer = self._loop.call_later(seconds, self.end)
        try:
            await self._enough
        finally:
            timer.cancel()


def count_refused(services: Services, traffic: TopicTraffic, code: int) -> None:
    """Count a partition that is answered with an error."""
    traffic.failed_fetches += 1
    services.counters.refused(ApiKey.FETCH, code)


def refuse(data: PartitionData, code: ErrorCode) -> None:
    """Turn the response for a partition into an error."""
    data.error_code, data.records = code, b""
    data.high_watermark = data.last_stable_offset = data.log_start_offset = -1


def fail(services: Services, partition: Partition, data: PartitionData, error: StorageError) -> None:
    """Handle a disk that failed while a partition was read."""
    partition.directory.fail(error)
    data.error_code, data.records = ErrorCode.KAFKA_STORAGE_ERROR, b""
    count_refused(services, partition.traffic, data.error_code)


def describe(data: PartitionData, reading: Reading) -> None:
    """Fill in the partition's offsets, and where the reader's log diverges from it."""
    data.high_watermark = reading.high_watermark
    data.last_stable_offset = reading.last_stable_offset
    data.log_start_offset = reading.log_start_offset
    if reading.aborted is not None:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in reading.aborted
        ]
    if reading.diverging_epoch is not None:
        epoch, end_offset = reading.diverging_epoch
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)


def inline_if_small(services: Services, part: FileRange, already: int) -> FileRange | bytes:
    """Read a small range, unless the response is already large or memory is short: file ranges need no memory."""
    if (
        part.size > _READ_INLINE_BYTES
        or already > _READ_INLINE_TOTAL_BYTES
        or (services.request_memory.is_short and already + part.size > FREE_BYTES)
    ):
        return part
    return part.file.read(part.position, part.size)


async def warm(services: Services, cold: Iterable[Cold], size: int) -> None:
    """Load records into memory in a thread, and verify those that have not been verified for long."""
    for partition, data, part in cold:
        try:
            data.records = inline_if_small(services, await partition.log.warm(part), size)
        except KafkaError as error:
            data.error_code, data.records = error.code, b""
            count_refused(services, partition.traffic, error.code)
        except StorageError as error:
            fail(services, partition, data, error)


def by_topic(answers: Iterable[tuple[PartitionKey, PartitionData]]) -> list[FetchableTopicResponse]:
    """Group the responses by topic, in the given order."""
    topics: dict[TopicKey, FetchableTopicResponse] = {}
    for (topic, _), data in answers:
        response = topics.get(topic)
        if response is None:
            response = topics[topic] = FetchableTopicResponse()
            if isinstance(topic, UUID):
                response.topic_id = topic
            else:
                response.topic = topic
        response.partitions.append(data)
    return list(topics.values())
