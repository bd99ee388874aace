"""Fetch 4 to 18: file ranges of committed batches; waits for min_bytes up to max_wait; incremental sessions.

Odd: at least one whole batch is returned however small the limits are, or a client could never get past a large
one (KIP-74). Topics are named by id from version 13. Small ranges are read and sent with the response's own bytes,
large ones go by sendfile; ranges that are not in the page cache are brought there by a thread first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from tailrace.broker.fetch_sessions import FetchSession, PartitionKey, TopicKey, wanted_partitions
from tailrace.broker.request_memory import FREE_BYTES
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.replication.partition import Partition
from tailrace.replication.traffic import TopicTraffic
from tailrace.runtime.disk import FileRange
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

_FIRST_VERSION_WITH_IDS = 13
_READ_COMMITTED = 1
#: Below this a copy costs less than a second system call.
_READ_INLINE_BYTES = 32 * 1024
#: So much of one response is read into memory, where it stays for as long as its client does not read it.
_READ_INLINE_TOTAL_BYTES = 1 << 20


class _Fetch(NamedTuple):
    """One fetch request, resolved: what to read and for whom."""

    services: Services
    request: FetchRequest
    by_topic_id: bool
    session: FetchSession | None
    wanted: list[tuple[PartitionKey, FetchPartition]]


class _Answers(NamedTuple):
    """What reading all wanted partitions gave."""

    data: list[tuple[PartitionKey, PartitionData]]
    size: int
    has_error: bool
    cold: list[tuple[Partition, PartitionData, FileRange]]
    #: What has records, with the partitions they are of.
    found: list[tuple[Partition, PartitionData]]


def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
    by_topic_id = context.version >= _FIRST_VERSION_WITH_IDS
    try:
        session = services.fetch_sessions.resolve(request, by_topic_id)
    except KafkaError as error:
        services.counters.refused(ApiKey.FETCH, error.code)
        return FetchResponse(error_code=error.code)
    if session is None:
        wanted = wanted_partitions(request, by_topic_id)
    else:
        wanted = [(key, partition.wanted) for key, partition in session.partitions.items()]
    fetch = _Fetch(services, request, by_topic_id, session, wanted)
    answers = _read_all(fetch)
    if answers.cold or not (answers.has_error or answers.size >= request.min_bytes or request.max_wait_ms <= 0):
        return _wait(fetch, answers)
    return _respond(fetch, answers)


async def _wait(fetch: _Fetch, answers: _Answers) -> FetchResponse:
    if not answers.cold:
        waiter = _Waiter(fetch.request.min_bytes - answers.size, asyncio.get_running_loop())
        partitions = [partition for key, _ in fetch.wanted if (partition := _find(fetch, key)) is not None]
        try:
            for partition in partitions:
                partition.watch(waiter)
            await waiter.wait(fetch.request.max_wait_ms / 1000)
        finally:
            for partition in partitions:
                partition.unwatch(waiter)
        answers = _read_all(fetch)
    for partition, data, part in answers.cold:
        try:
            data.records = _inline_if_small(fetch, await partition.log.warm(part), answers.size)
        except KafkaError as error:
            data.error_code, data.records = error.code, b""
            _count_refused(fetch, partition.traffic, error.code)
        except StorageError as error:
            _fail(fetch, partition, data, error)
    return _respond(fetch, answers)


def _fail(fetch: _Fetch, partition: Partition, data: PartitionData, error: StorageError) -> None:
    partition.directory.fail(error)
    data.error_code, data.records = ErrorCode.KAFKA_STORAGE_ERROR, b""
    _count_refused(fetch, partition.traffic, data.error_code)


def _count_refused(fetch: _Fetch, traffic: TopicTraffic, code: int) -> None:
    traffic.failed_fetches += 1
    fetch.services.counters.refused(ApiKey.FETCH, code)


class _Waiter:
    """A fetch that waits for more bytes, told by the partitions it watches."""

    def __init__(self, missing: int, loop: asyncio.AbstractEventLoop) -> None:
        self._missing = missing
        self._loop = loop
        self._enough: asyncio.Future[None] = loop.create_future()

    def more_to_read(self, size: int) -> None:
        self._missing -= size
        if self._missing <= 0 and not self._enough.done():
            self._enough.set_result(None)

    async def wait(self, seconds: float) -> None:
        timer = self._loop.call_later(seconds, self.more_to_read, 1 << 62)
        try:
            await self._enough
        finally:
            timer.cancel()


def _find(fetch: _Fetch, key: PartitionKey) -> Partition | None:
    try:
        return _require(fetch, key)
    except KafkaError:
        return None


def _require(fetch: _Fetch, key: PartitionKey) -> Partition:
    topic, number = key
    if isinstance(topic, UUID):
        return fetch.services.partitions.find_by_id(topic, number)
    return fetch.services.partitions.find(topic, number)


def _read_all(fetch: _Fetch) -> _Answers:
    """Read every partition until the size limit is reached, the first batch of all whatever its size."""
    request = fetch.request
    left = min(request.max_bytes, fetch.services.config.get_int("fetch.max.bytes"))
    answers: list[tuple[PartitionKey, PartitionData]] = []
    cold: list[tuple[Partition, PartitionData, FileRange]] = []
    found: list[tuple[Partition, PartitionData]] = []
    size = 0
    has_error = False
    for key, wanted in fetch.wanted:
        data = PartitionData(partition_index=key[1], records=b"", aborted_transactions=None)
        answers.append((key, data))
        try:
            partition = _require(fetch, key)
            part = _read(fetch, partition, wanted, data, left, may_exceed=size == 0)
        except KafkaError as error:
            data.error_code, data.high_watermark, data.log_start_offset = error.code, -1, -1
            data.last_stable_offset = -1
            has_error = True
            _count_refused(fetch, fetch.services.partitions.traffic_of(key[0]), error.code)
            continue
        if data.diverging_epoch is not None:
            has_error = True
        if part is None:
            continue
        try:
            if partition.log.is_warm(part):
                data.records = _inline_if_small(fetch, part, size)
            else:
                cold.append((partition, data, part))
        except StorageError as error:
            _fail(fetch, partition, data, error)
            has_error = True
            continue
        found.append((partition, data))
        size += part.size
        left -= part.size
    return _Answers(answers, size, has_error, cold, found)


def _read(
    fetch: _Fetch, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, may_exceed: bool
) -> FileRange | None:
    partition.require_served()
    partition.require_epoch(wanted.current_leader_epoch)
    diverging = partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset)
    if diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
        part = None
    elif left <= 0 and not may_exceed:
        part = None
    else:
        limit = min(wanted.partition_max_bytes, left)
        part = partition.read(wanted.fetch_offset, limit, wanted.current_leader_epoch)
        if part is not None and part.size > limit and not may_exceed:
            part = None
    data.high_watermark = data.last_stable_offset = partition.high_watermark
    data.log_start_offset = partition.log.start_offset
    if fetch.request.isolation_level == _READ_COMMITTED:
        data.aborted_transactions = []
    return part


def _inline_if_small(fetch: _Fetch, part: FileRange, already: int) -> FileRange | bytes:
    """Read a small range, unless the response has much already or memory is short: a range of a file takes none."""
    if (
        part.size > _READ_INLINE_BYTES
        or already > _READ_INLINE_TOTAL_BYTES
        or (fetch.services.request_memory.is_short and already + part.size > FREE_BYTES)
    ):
        return part
    return part.file.read(part.position, part.size)


def _respond(fetch: _Fetch, answers: _Answers) -> FetchResponse:
    for partition, found in answers.found:
        partition.traffic.bytes_out += len(found.records or b"")
    session = fetch.session
    if session is None:
        return FetchResponse(responses=_by_topic(fetch, answers.data))
    news = [
        (key, data)
        for key, data in answers.data
        if (known := session.partitions.get(key)) is not None and known.is_news(data)
    ]
    session.moved_to_end([key for key, data in news if data.records])
    return FetchResponse(session_id=session.session_id, responses=_by_topic(fetch, news))


def _by_topic(fetch: _Fetch, answers: Iterable[tuple[PartitionKey, PartitionData]]) -> list[FetchableTopicResponse]:
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
