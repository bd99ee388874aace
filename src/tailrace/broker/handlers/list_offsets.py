"""ListOffsets 1 to 10: earliest (-2), latest (-1), largest timestamp (-3), local log start (-4), by timestamp."""

from __future__ import annotations

import asyncio

from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_OFFSET, NO_TIMESTAMP
from tailrace.replication.partition import Partition
from tailrace.storage.partition_log import TimestampedOffset
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
#: A search by time reads from disk: others get their turn in between.
_LOOK_UPS_PER_TURN = 20
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}


async def handle(services: Services, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    seen: dict[tuple[str, int], None] = {}
    topics = []
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            if (topic.name, wanted.partition_index) in seen:
                refused = ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=ErrorCode.INVALID_REQUEST
                )
                answers.append(refused)
                continue
            seen[topic.name, wanted.partition_index] = None
            answers.append(_look_up(services, context.version, topic.name, wanted))
            if len(seen) % _LOOK_UPS_PER_TURN == 0:
                await asyncio.sleep(0)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _look_up(
    services: Services, version: int, topic: str, wanted: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        partition = services.partitions.find(topic, wanted.partition_index)
        partition.require_served()
        partition.require_epoch(wanted.current_leader_epoch)
        found = _find(partition, version, wanted.timestamp)
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    except StorageError as error:
        partition.directory.fail(error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer
    answer.offset, answer.timestamp = found
    if found.offset >= 0:
        if wanted.timestamp == LATEST:
            answer.leader_epoch = partition.leader_epoch
        else:
            answer.leader_epoch = partition.log.leader_epochs.epoch_at(found.offset)
    return answer


def _find(partition: Partition, version: int, timestamp: int) -> TimestampedOffset:
    log = partition.log
    if version < _SINCE_VERSION.get(timestamp, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == LATEST:
        return TimestampedOffset(partition.high_watermark, NO_TIMESTAMP)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimestampedOffset(log.start_offset, NO_TIMESTAMP)
    if timestamp == LATEST_TIERED:
        return TimestampedOffset(NO_OFFSET, NO_TIMESTAMP)
    if timestamp == MAX_TIMESTAMP:
        return log.offset_of_max_timestamp(partition.high_watermark)
    if timestamp < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    return log.offset_for_timestamp(timestamp, partition.high_watermark)
