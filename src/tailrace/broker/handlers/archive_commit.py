"""ArchiveCommit 0: a commit of a topic's archive, served by any broker; one transaction of the store decides.

Odd: an end beyond what is committed is refused only for partitions that are led here, as no other broker can tell.
"""

from __future__ import annotations

import logging

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.broker.upkeep.archive_access import require_readers
from tailrace.cluster.archives import ArchiveCommit, ArchivedRange
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.storage.checkpoints import encode_uuid
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest, ArchiveCommitResponse

logger = logging.getLogger("tailrace.archive")


async def handle(services: Services, context: RequestContext, request: ArchiveCommitRequest) -> ArchiveCommitResponse:
    try:
        topic = access.find_topic_by_lineage(services, context, Operation.ALTER, request.lineage)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic of id {encode_uuid(request.lineage)}.")
        _check_place(services, topic, request.uri)
        _check_readers(services, topic)
        if not request.manifest:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A commit names its manifest.")
        ranges = {
            item.partition_index: ArchivedRange(item.start_offset, item.end_offset) for item in request.partitions
        }
        if len(ranges) < len(request.partitions):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A partition is named twice.")
        _check_committed(services, context, topic, ranges)
        commit = ArchiveCommit(request.expected_version, request.uri, request.manifest, ranges)
        state = await services.metadata.commit_archive(topic, commit)
    except KafkaError as error:
        return ArchiveCommitResponse(error_code=error.code, error_message=str(error))
    logger.info("%s is archived by version %d, %s", topic.name, state.version, state.manifest)
    return ArchiveCommitResponse(version=request.expected_version + 1)


def _check_place(services: Services, topic: TopicImage, uri: str) -> None:
    config = services.config.topic_config(topic.configs)
    if not config.is_archived:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name} has no archive: set tailrace.archive.enable=true for the topic first.",
        )
    if uri != config.archive_uri:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name} is archived to {config.archive_uri}, as its tailrace.archive.uri says, not to {uri}.",
        )


def _check_readers(services: Services, topic: TopicImage) -> None:
    """Refuse to archive what a replica could not serve; brokers give up records on the word of a commit."""
    brokers = services.metadata.image.brokers
    replicas = dict.fromkeys(replica for partition in topic.partitions for replica in partition.replicas)
    require_readers(brokers[replica] for replica in replicas if replica in brokers)


def _check_committed(
    services: Services, context: RequestContext, topic: TopicImage, ranges: dict[int, ArchivedRange]
) -> None:
    for number, archived in ranges.items():
        try:
            partition = access.find_partition_by_lineage(services, context, None, topic.lineage, number)
        except KafkaError:
            continue
        if not partition.surely_leads or not partition.has_current_high_watermark:
            continue
        if archived.end > partition.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition.partition} is committed up to {partition.high_watermark}; it cannot be archived up to "
                f"{archived.end}.",
            )


API = Api(
    ArchiveCommitRequest,
    0,
    0,
    handle,
    "tailrace only: commit to a topic's archive. Not advertised.",
    # It says what brokers serve, and lets them give up records.
    needs=(each(Operation.ALTER, ResourceType.TOPIC),),
)
