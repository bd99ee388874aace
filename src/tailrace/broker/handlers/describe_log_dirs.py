"""DescribeLogDirs 1 to 5: each log directory with its logs, their sizes, and the free space of its volume.

No directory is ever cordoned.
"""

from __future__ import annotations

import asyncio
import os.path

from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.storage.log_directory import LogDirectory
from tailrace.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

#: Adding up the segments of many logs takes time, so other requests run in between.
_LOGS_PER_TURN = 200


async def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    topics: dict[LogDirectory, dict[str, DescribeLogDirsTopic]] = {
        directory: {} for directory in services.partitions.directories
    }
    for count, partition in enumerate(services.partitions, 1):
        if count % _LOGS_PER_TURN == 0:
            await asyncio.sleep(0)
        topic, number = partition.partition
        if wanted is not None and (topic, number) not in wanted:
            continue
        log = partition.log
        of_topic = topics[partition.directory].setdefault(topic, DescribeLogDirsTopic(name=topic))
        of_topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=number,
                partition_size=log.segments.size_bytes,
                offset_lag=max(0, partition.high_watermark - log.end_offset),
            )
        )
    return DescribeLogDirsResponse(
        results=[await _describe(services, directory, list(logs.values())) for directory, logs in topics.items()]
    )


async def _describe(
    services: Services, directory: LogDirectory, topics: list[DescribeLogDirsTopic]
) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=_absolute(directory.path))
    try:
        directory.require_online()
        volume = await services.disk.offload(lambda: services.disk.volume(directory.path))
    except (KafkaError, StorageError):
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.topics, result.total_bytes, result.usable_bytes = topics, volume.total_bytes, volume.usable_bytes
    return result


def _absolute(path: str) -> str:
    return os.path.abspath(path)


API = Api(
    DescribeLogDirsRequest,
    1,
    5,
    handle,
    "Describe log directories: their logs, sizes and free space.",
    needs=(whole(Operation.DESCRIBE, ResourceType.CLUSTER),),
    refuse=refuse_with(DescribeLogDirsResponse),
)
