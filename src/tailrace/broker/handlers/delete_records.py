"""DeleteRecords 0 to 2: moves the log start, durably before it is answered; -1 means up to the high watermark.

Odd: it is answered when all replicas that are alive or in sync have given up the records, with the lowest of their log
starts: one that is in sync and away may lead when it is back. What takes longer than the client waits is
REQUEST_TIMED_OUT, and goes on nevertheless. Of an archived topic it
is first written to the store that nobody may read those records, wherever they are.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tailrace.broker import access
from tailrace.broker.fetching.replica_sessions import ReplicaSession
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import INTERNAL_TOPICS
from tailrace.replication.partition import Partition
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_HIGH_WATERMARK = -1


class _Moved(NamedTuple):
    """A log whose start was moved here, and the place in the response that says what became of it."""

    partition: Partition
    offset: int
    result: DeleteRecordsPartitionResult


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    moved: list[_Moved] = []
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                await _advance(services, context, topic.name, partition, moved) for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    for directory in dict.fromkeys(one.partition.directory for one in moved):
        try:
            await directory.checkpoints.save()
        except StorageError:
            for one in moved:
                if one.partition.directory is directory:
                    _refuse(one.result, ErrorCode.KAFKA_STORAGE_ERROR)
    waiting = [one for one in moved if one.result.error_code == ErrorCode.NONE and one.partition.is_replicated]
    if waiting:
        await _wait_for_followers(services, waiting, request.timeout_ms)
    return DeleteRecordsResponse(topics=topics)


async def _advance(
    services: Services, context: RequestContext, topic: str, wanted: DeleteRecordsPartition, moved: list[_Moved]
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index)
    try:
        access.require_topic(services, context, Operation.DELETE, topic)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        partition = access.find_partition(services, context, Operation.DELETE, topic, wanted.partition_index)
        partition.require_leader()
        config = partition.log.config
        if config.compact and not config.delete_expired:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of partition {partition.partition} can not be deleted due to the configured policy",
            )
        offset = partition.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if config.is_archived:
            await _delete_archived(services, context, partition, offset)
        partition.log.advance_start(offset)
        result.low_watermark = partition.log_start_offset
        moved.append(_Moved(partition, offset, result))
    except KafkaError as error:
        _refuse(result, error.code)
    return result


async def _delete_archived(services: Services, context: RequestContext, partition: Partition, offset: int) -> None:
    topic = access.find_topic_by_lineage(services, context, Operation.DELETE, partition.lineage)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await services.metadata.delete_archived(topic, {partition.partition.partition: offset})
    partition.require_leader()


def _refuse(result: DeleteRecordsPartitionResult, code: ErrorCode) -> None:
    result.error_code, result.low_watermark = code, -1


async def _wait_for_followers(services: Services, waiting: list[_Moved], timeout_ms: int) -> None:
    """Let followers hear of it at once, and wait until their own fetches say that they have done the same."""
    for partition, _, _ in waiting:
        key = services.metadata.image.topic_id_of(partition.lineage), partition.partition.partition
        for session in services.fetch_sessions:
            if isinstance(session, ReplicaSession):
                session.look_at(key)
    futures = [partition.leading.wait_for_low_watermark(offset) for partition, offset, _ in waiting]
    try:
        await asyncio.wait(futures, timeout=max(0, timeout_ms) / 1000)
    finally:
        for future in futures:
            future.cancel()
    for (partition, _, result), future in zip(waiting, futures, strict=True):
        if future.cancelled():
            _refuse(result, ErrorCode.REQUEST_TIMED_OUT)
        elif isinstance(error := future.exception(), KafkaError):
            _refuse(result, error.code)
        else:
            result.low_watermark = partition.leading.low_watermark


API = Api(
    DeleteRecordsRequest,
    0,
    2,
    handle,
    "Delete records below an offset.",
    needs=(each(Operation.DELETE, ResourceType.TOPIC),),
)
