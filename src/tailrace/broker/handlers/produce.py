"""Produce 3 to 13: one batch per partition, checked by header and CRC, appended inline, acknowledged as acks demands.

Odd: acks may be any number of replicas, not only 0, 1 and -1 (all). acks=0 gets no response, but an error closes the
connection so that the producer refreshes its metadata. Topics are named by id from version 13 on. The records are
patched in the receive buffer and must not outlive the call. So everything is appended before the first await, or copied
if the topic's batches are prepared outside the event loop. The first batch of a transaction in a partition is copied
too, because it waits until the coordinator has the partition (`transactional_appends`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, RecordsRefusedError
from tailrace.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from tailrace.records.compression import Compression
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.partition import Partition
from tailrace.runtime.transport import Part
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.storage.partition_log import Appended
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.produce import ProduceRequest
from tailrace.wire.produce_frames import (
    ProduceCall,
    ProduceResult,
    ProduceResults,
    Topic,
    decode_produce,
    encode_produce,
)

_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_IDS = 13
_ATTRIBUTES_LOW_BYTE_AT = 22
_WRITE = Operation.WRITE


#: Batches without a final result: the last offset of one that is in the log but not acknowledged yet, or the future of
#: one that is still being prepared.
_Waiting: TypeAlias = list[tuple[ProduceResult, Partition, int | asyncio.Future[Appended]]]


def handle(
    services: Services, context: RequestContext, call: ProduceCall
) -> ProduceResults | Coroutine[Any, Any, ProduceResults | None] | None:
    waiting: _Waiting = []
    results: ProduceResults = []
    failed = False
    find = access.partition_finder(services, context, _WRITE, context.version >= _FIRST_VERSION_WITH_IDS)
    for topic, batches in call.topics:
        of_topic = []
        for index, records in batches:
            result = _append(services, context, find, call, topic, index, records, waiting)
            failed = failed or result.error_code != 0
            of_topic.append(result)
        results.append((topic, of_topic))
    if failed and not waiting:
        _count_refused(services, results)
    if call.acks == 0:
        if failed:
            context.disconnect()
        # The request counts as open until its batches are appended: a producer with acks=0 must be slowed down too.
        return _finish_silently(services, context, call, results, waiting) if waiting else None
    return _finish(services, call, results, waiting) if waiting else results


def _append(
    services: Services,
    context: RequestContext,
    find: Callable[[Topic, int], Partition],
    call: ProduceCall,
    topic: Topic,
    index: int,
    records: memoryview | None,
    waiting: _Waiting,
) -> ProduceResult:
    partition: Partition | None = None
    try:
        partition = find(topic, index)
        if not records or call.acks < ACKS_ALL or partition.is_internal:
            raise _refusal(call, partition)
        if context.version < _FIRST_VERSION_WITH_ZSTD:
            _refuse_zstd(records)
        if _is_transactional(records):
            transactional_id = access.require_transactional_id(services, context, _WRITE, call.transactional_id)
            appended = services.transactional_appends.append(
                partition, transactional_id, records, call.acks, context.version
            )
        else:
            appended = partition.append(records, call.acks)
    except KafkaError as error:
        if partition is None and records and error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            services.partitions.missed(topic, index, records)
        result = ProduceResult(index, 0, -1)
        _fail(result, error)
        return result
    if not isinstance(appended, Appended):
        result = ProduceResult(index, 0, -1)
        waiting.append((result, partition, appended))
        return result
    result = ProduceResult(index, 0, appended.base_offset, appended.append_time_ms, partition.log_start_offset, None)
    if appended.base_offset < 0:
        _fail(result, _too_old_a_duplicate())
    if call.acks != 0 and not partition.is_acknowledged(appended.last_offset, call.acks):
        waiting.append((result, partition, appended.last_offset))
    return result


def _fail(result: ProduceResult, error: KafkaError) -> None:
    result.error_code, result.message, result.base_offset = error.code, error.message, -1
    if isinstance(error, RecordsRefusedError):
        result.record_errors = error.record_errors


def _too_old_a_duplicate() -> KafkaError:
    """Return the error that every client treats as success without an offset; sent once an ack is due."""
    return KafkaError(
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "The batch is in the log, but its offset is no longer known."
    )


def _refusal(call: ProduceCall, partition: Partition) -> KafkaError:
    """Return why a request is refused regardless of its records."""
    if call.acks < ACKS_ALL:
        return KafkaError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1 (all), 0, 1 or a number of replicas, not {call.acks}"
        )
    if partition.is_internal:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only brokers may write to {partition.partition.topic}.")
    return KafkaError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch per partition")


def _refuse_zstd(records: memoryview) -> None:
    if len(records) > _ATTRIBUTES_LOW_BYTE_AT and records[_ATTRIBUTES_LOW_BYTE_AT] & 7 == Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")


def _is_transactional(records: memoryview) -> bool:
    kind = CONTROL_BIT | TRANSACTIONAL_BIT
    return len(records) > _ATTRIBUTES_LOW_BYTE_AT and records[_ATTRIBUTES_LOW_BYTE_AT] & kind == TRANSACTIONAL_BIT


def _count_refused(services: Services, results: ProduceResults) -> None:
    for topic, of_topic in results:
        for result in of_topic:
            if result.error_code:
                services.counters.refused(ApiKey.PRODUCE, result.error_code)
                services.partitions.traffic_of(topic).failed_produces += 1


async def _finish(services: Services, call: ProduceCall, results: ProduceResults, waiting: _Waiting) -> ProduceResults:
    """Respond when everything appended may be acknowledged, or when the producer's timeout is over."""
    unacknowledged = await _append_rest(call.acks, waiting)
    if unacknowledged:
        await _wait_for_acknowledgements(call, unacknowledged)
    _count_refused(services, results)
    return results


async def _finish_silently(
    services: Services, context: RequestContext, call: ProduceCall, results: ProduceResults, waiting: _Waiting
) -> None:
    await _append_rest(call.acks, waiting)
    _count_refused(services, results)
    if any(result.error_code for result, _, _ in waiting):
        context.disconnect()


async def _append_rest(acks: int, waiting: _Waiting) -> list[tuple[ProduceResult, Partition, int]]:
    """Wait until all prepared batches are appended or refused; return those that cannot be acknowledged yet."""
    futures = [where for _, _, where in waiting if not isinstance(where, int)]
    if futures:
        # Awaiting them one by one would cancel them if the client disconnects, and other batches queue behind them.
        await asyncio.wait(futures)
    unacknowledged = []
    for result, partition, where in waiting:
        if isinstance(where, int):
            unacknowledged.append((result, partition, where))
            continue
        try:
            appended = where.result()
        except KafkaError as error:
            _fail(result, error)
            continue
        result.base_offset = appended.base_offset
        result.append_time_ms = appended.append_time_ms
        result.log_start_offset = partition.log_start_offset
        if appended.base_offset < 0:
            _fail(result, _too_old_a_duplicate())
        if not partition.is_acknowledged(appended.last_offset, acks):
            unacknowledged.append((result, partition, appended.last_offset))
    return unacknowledged


async def _wait_for_acknowledgements(
    call: ProduceCall, unacknowledged: list[tuple[ProduceResult, Partition, int]]
) -> None:
    futures = [partition.acknowledging.wait_for(last_offset, call.acks) for _, partition, last_offset in unacknowledged]
    done, _ = await asyncio.wait(futures, timeout=max(0, call.timeout_ms) / 1000)
    for (result, _, _), future in zip(unacknowledged, futures, strict=True):
        if future not in done:
            future.cancel()
            _fail(result, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        elif (reason := future.exception()) is not None:
            _fail(result, reason if isinstance(reason, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))


def _encode(version: int, response: ProduceResults, throttle_ms: int = 0) -> list[Part]:
    return [encode_produce(version, response, throttle_ms)]


# Advertised from version 0 because older librdkafka assumes that a broker without version 0 has no compression
# (KAFKA-18659); versions 0 to 2 themselves are refused.
API = Api(
    ProduceRequest,
    0,
    13,
    handle,
    "Append record batches. Versions 0 to 2 are advertised for old clients, but refused.",
    max_bytes=2**31,
    decode_by_hand=decode_produce,
    needs=(each(Operation.WRITE, ResourceType.TOPIC), each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)),
    encode=_encode,
)
