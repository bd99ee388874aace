"""Produce 3 to 13: one batch per partition, checked by header and CRC, appended inline, acknowledged when promised.

Odd: acks=0 gets no response at all, but an error closes the connection so that the producer looks for news. From
version 13 topics are named by id. The records are patched where they were received and must not outlive the call,
so everything is appended before anything is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.compression import Compression
from tailrace.replication.partition import ACKS_ALL, Partition
from tailrace.wire.produce_frames import ProduceCall, ProduceResult, ProduceResults, Topic

_FIRST_VERSION_WITH_ZSTD = 7
_ATTRIBUTES_LOW_BYTE_AT = 22


def handle(
    services: Services, context: RequestContext, call: ProduceCall
) -> ProduceResults | Coroutine[Any, Any, ProduceResults] | None:
    waiting: list[tuple[ProduceResult, Partition, int]] = []
    results: ProduceResults = []
    failed = False
    for topic, batches in call.topics:
        of_topic = []
        for index, records in batches:
            result = _append(services, context.version, call, topic, index, records, waiting)
            failed = failed or result.error_code != 0
            of_topic.append(result)
        results.append((topic, of_topic))
    if call.acks == 0:
        if failed:
            context.disconnect()
        return None
    return _finish(call.timeout_ms, results, waiting) if waiting else results


def _append(
    services: Services,
    version: int,
    call: ProduceCall,
    topic: Topic,
    index: int,
    records: memoryview | None,
    waiting: list[tuple[ProduceResult, Partition, int]],
) -> ProduceResult:
    try:
        if isinstance(topic, str):
            partition = services.partitions.find(topic, index)
        else:
            partition = services.partitions.find_by_id(topic, index)
        if not records or call.transactional_id is not None or not ACKS_ALL <= call.acks <= 1:
            raise _refusal(call)
        if version < _FIRST_VERSION_WITH_ZSTD:
            _refuse_zstd(records)
        appended = partition.append(records, call.acks)
    except KafkaError as error:
        return ProduceResult(index, error.code, -1, message=error.message)
    result = ProduceResult(index, 0, appended.base_offset, appended.append_time_ms, partition.log.start_offset, None)
    if not partition.is_acknowledged(appended.last_offset):
        waiting.append((result, partition, appended.last_offset))
    return result


def _refusal(call: ProduceCall) -> KafkaError:
    """Why a request is refused whatever its records are."""
    if not ACKS_ALL <= call.acks <= 1:
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be 0, 1 or -1 (all), not {call.acks}")
    if call.transactional_id is not None:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "Transactions are not served by this broker.")
    return KafkaError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch per partition")


def _refuse_zstd(records: memoryview) -> None:
    if len(records) > _ATTRIBUTES_LOW_BYTE_AT and records[_ATTRIBUTES_LOW_BYTE_AT] & 7 == Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")


async def _finish(
    timeout_ms: int, results: ProduceResults, waiting: list[tuple[ProduceResult, Partition, int]]
) -> ProduceResults:
    """Answer when everything appended may be acknowledged, or the producer's patience ends."""
    futures = [partition.wait_for(last_offset) for _, partition, last_offset in waiting]
    done, _ = await asyncio.wait(futures, timeout=max(0, timeout_ms) / 1000)
    for (result, _, _), future in zip(waiting, futures, strict=True):
        error: ErrorCode | None = None
        if future not in done:
            future.cancel()
            error = ErrorCode.REQUEST_TIMED_OUT
        elif (reason := future.exception()) is not None:
            error = reason.code if isinstance(reason, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not None:
            result.error_code, result.base_offset = error, -1
    return results
