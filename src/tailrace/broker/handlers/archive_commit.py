"""ArchiveCommit 0: commits a new version of a topic's archive; any broker serves it, and one store transaction decides.

Odd: only the leader of a partition can tell what is committed, so this broker checks the end offsets of only those
partitions that it leads.
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
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic id {encode_uuid(request.lineage)} does not exist.")
        _check_place(services, topic, request.uri)
        _check_readers(services, topic)
        if not request.manifest:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "An archive commit must name its manifest.")
        ranges = {
            item.partition_index: ArchivedRange(item.start_offset, item.end_offset) for item in request.partitions
        }
        if len(ranges) < len(request.partitions):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a partition twice.")
        _check_committed(services, context, topic, ranges)
        commit = ArchiveCommit(request.expected_version, request.uri, request.manifest, ranges)
        state = await services.metadata.commit_archive(topic, commit)
    except KafkaError as error:
        return ArchiveCommitResponse(error_code=error.code, error_message=str(error))
    logger.info("topic %s: committed version %d of its archive, manifest %s", topic.name, state.version, state.manifest)
    return ArchiveCommitResponse(version=request.expected_version + 1)


def _check_place(services: Services, topic: TopicImage, uri: str) -> None:
    config = services.config.topic_config(topic.configs)
    if not config.is_archived:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name} has no archive; set tailrace.archive.enable=true for the topic first.",
        )
    if uri != config.archive_uri:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name} has tailrace.archive.uri={config.archive_uri}, but the commit names {uri}; archive to "
            "the configured place.",
        )


def _check_readers(services: Services, topic: TopicImage) -> None:
    """Refuse the commit if a replica cannot read archives: brokers remove the records that a commit covers."""
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
                f"{partition.partition} is committed up to offset {partition.high_watermark}, but the archive "
                f"commit ends at {archived.end}.",
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
