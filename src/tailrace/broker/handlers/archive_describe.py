"""ArchiveDescribe 0 and 1: which offsets of a topic are archived, from this broker's image.

From version 1 on, a request may ask whether this broker can read the archives; the broker then tries each of them.
"""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.archives import ArchiveState
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.archive_describe import (
    ArchiveDescribeRequest,
    ArchiveDescribeResponse,
    DescribedArchive,
    DescribedPartition,
)


async def handle(
    services: Services, context: RequestContext, request: ArchiveDescribeRequest
) -> ArchiveDescribeResponse:
    archives = await services.partitions.long_work.each(lambda name: _describe(services, context, name), request.topics)
    if request.checks_reading:
        for archive in archives:
            if archive.is_enabled:
                archive.read_failure = await _read_failure(services, context, archive)
    return ArchiveDescribeResponse(archives=archives)


async def _read_failure(services: Services, context: RequestContext, archive: DescribedArchive) -> str | None:
    for described in archive.partitions:
        number = described.partition_index
        try:
            partition = access.find_partition_by_lineage(services, context, None, archive.lineage, number)
        except KafkaError:
            continue
        return await services.archive_access.check(partition)
    return None  # a broker without a replica of the topic never serves its records


def _describe(services: Services, context: RequestContext, name: str) -> DescribedArchive:
    image = services.metadata.image
    try:
        topic = access.find_topic(services, context, Operation.DESCRIBE, name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    except KafkaError as refusal:
        return DescribedArchive(name=name, error_code=refusal.code, error_message=refusal.message)
    state = image.archives.get(topic.lineage, ArchiveState(topic.lineage))
    uri = services.config.topic_value("tailrace.archive.uri", topic.configs).value
    return DescribedArchive(
        name=name,
        lineage=topic.lineage,
        is_enabled=services.config.topic_bool("tailrace.archive.enable", topic.configs),
        uri=uri or "",
        retention_ms=services.config.topic_int("tailrace.archive.retention.ms", topic.configs),
        version=state.version,
        manifest=state.manifest,
        partitions=[_partition(state, number) for number in range(len(topic.partitions))],
    )


def _partition(state: ArchiveState, number: int) -> DescribedPartition:
    start, end = state.partitions.get(number, (-1, -1))
    return DescribedPartition(
        partition_index=number,
        start_offset=start,
        end_offset=end,
        deleted_below=state.deleted_below.get(number, 0),
    )


API = Api(
    ArchiveDescribeRequest,
    0,
    1,
    handle,
    "tailrace only: describe what is archived. Not advertised.",
    needs=(each(Operation.DESCRIBE, ResourceType.TOPIC),),
)
