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
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_IDS = 13
_ATTRIBUTES_LOW_BYTE_AT = 22


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    waiting: list[tuple[PartitionProduceResponse, Partition, int]] = []
    responses = []
    failed = False
    for topic in request.topic_data:
        results = []
        for data in topic.partition_data:
            result = _append(services, context, request, topic, data, waiting)
            failed = failed or result.error_code != 0
            results.append(result)
        responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results))
    if request.acks == 0:
        if failed:
            context.disconnect()
        return None
    response = ProduceResponse(responses=responses)
    return _finish(request.timeout_ms, response, waiting) if waiting else response


def _append(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    waiting: list[tuple[PartitionProduceResponse, Partition, int]],
) -> PartitionProduceResponse:
    try:
        if context.version >= _FIRST_VERSION_WITH_IDS:
            partition = services.partitions.find_by_id(topic.topic_id, data.index)
        else:
            partition = services.partitions.find(topic.name, data.index)
        records = _require_sound(request, context, data)
        appended = partition.append(records, request.acks)
    except KafkaError as error:
        return PartitionProduceResponse(
            index=data.index, error_code=error.code, base_offset=-1, error_message=error.message
        )
    result = PartitionProduceResponse(
        index=data.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time_ms,
        log_start_offset=partition.log.start_offset,
    )
    if not partition.is_acknowledged(appended.last_offset):
        waiting.append((result, partition, appended.last_offset))
    return result


def _require_sound(request: ProduceRequest, context: RequestContext, data: PartitionProduceData) -> memoryview:
    """What can be refused without a look at the partition."""
    if not ACKS_ALL <= request.acks <= 1:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be 0, 1 or -1 (all), not {request.acks}")
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Transactions are not served by this broker.")
    records = data.records
    if not isinstance(records, memoryview) or not records:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "Produce requests must contain exactly one record batch per partition"
        )
    if (
        context.version < _FIRST_VERSION_WITH_ZSTD
        and len(records) > _ATTRIBUTES_LOW_BYTE_AT
        and records[_ATTRIBUTES_LOW_BYTE_AT] & 7 == Compression.ZSTD
    ):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")
    return records


async def _finish(
    timeout_ms: int,
    response: ProduceResponse,
    waiting: list[tuple[PartitionProduceResponse, Partition, int]],
) -> ProduceResponse:
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
    return response
