"""DeleteRecords 0 to 2: moves the log start, durably before it is answered; -1 means up to the high watermark."""

from __future__ import annotations

from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import INTERNAL_TOPICS
from tailrace.storage.log_directory import LogDirectory
from tailrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_HIGH_WATERMARK = -1


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    moved: list[tuple[LogDirectory, DeleteRecordsPartitionResult]] = []
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[_advance(services, topic.name, partition, moved) for partition in topic.partitions],
        )
        for topic in request.topics
    ]
    for directory in dict.fromkeys(directory for directory, _ in moved):
        try:
            await directory.save_checkpoints()
        except StorageError:
            for home, result in moved:
                if home is directory:
                    result.error_code, result.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, -1
    return DeleteRecordsResponse(topics=topics)


def _advance(
    services: Services,
    topic: str,
    wanted: DeleteRecordsPartition,
    moved: list[tuple[LogDirectory, DeleteRecordsPartitionResult]],
) -> DeleteRecordsPartitionResult:
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        partition = services.partitions.find(topic, wanted.partition_index)
        partition.require_served()
        config = partition.log.config
        if config.compact and not config.delete_expired:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of partition {partition.partition} can not be deleted due to the configured policy",
            )
        offset = partition.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.log.advance_start(offset)
        result = DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=partition.log.start_offset
        )
        moved.append((partition.directory, result))
        return result
    except KafkaError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=-1, error_code=error.code
        )
