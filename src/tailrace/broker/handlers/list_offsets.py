"""ListOffsets 1 to 11: earliest (-2), latest (-1), largest timestamp (-3), by timestamp, and ends of the archive.

With an archive, -4 is the local log start, -5 the last archived offset and -6 the first offset to be archived next.

Odd: for clients the latest offset is the high watermark, or the last stable offset if they read committed records, for
followers the log end. A newly elected leader does not
know the high watermark yet: the response is OFFSET_NOT_AVAILABLE, before version 5 LEADER_NOT_AVAILABLE. Replica -2 is
a debugging tool; followers answer it too. A peer that names a broker must have proved its identity. The earliest offset
and searches by time include the archive.
"""

from __future__ import annotations

import asyncio

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.peer_identity import require_broker
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_OFFSET, NO_TIMESTAMP
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.storage.timestamp_search import TimestampedOffset
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
EARLIEST_PENDING_UPLOAD = -6
#: By the replica id of a request; any other id is a follower.
_AUDIENCES = {-1: Audience.CLIENT, -2: Audience.INSPECTOR}
#: A search by time reads from disk, so other requests run in between.
_LOOK_UPS_PER_TURN = 20
_OFFSET_NOT_AVAILABLE_FROM = 5
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


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
            answers.append(await _look_up(services, context, request, topic.name, wanted))
            if len(seen) % _LOOK_UPS_PER_TURN == 0:
                await asyncio.sleep(0)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _look_up(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    wanted: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    audience = _AUDIENCES.get(request.replica_id, Audience.REPLICA)
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        if request.replica_id >= 0:
            require_broker(services, context, request.replica_id)
        partition = access.find_partition(services, context, Operation.DESCRIBE, topic, wanted.partition_index)
        if audience is Audience.INSPECTOR:
            partition.require_served()
            partition.require_epoch(wanted.current_leader_epoch)
        else:
            partition.require_leader(wanted.current_leader_epoch)
        found = None
        if partition.log_start_offset < partition.log.start_offset and (
            wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP
        ):
            found = await _find_archived(services, partition, wanted)
        if found is None or wanted.timestamp == MAX_TIMESTAMP:
            here = await _find(
                services, partition, context.version, request.isolation_level, wanted.timestamp, audience
            )
            found = here if found is None or here.timestamp > found.timestamp else found
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    except StorageError as error:
        answer.error_code = _failed(partition, error)
        return answer
    answer.offset, answer.timestamp = found
    if found.offset >= 0:
        if wanted.timestamp == LATEST:
            answer.leader_epoch = partition.leader_epoch
        else:
            answer.leader_epoch = partition.log.leader_epochs.epoch_at(found.offset)
    return answer


def _failed(partition: Partition, error: StorageError) -> ErrorCode:
    """Map a disk error to an error code; if the log was closed or deleted meanwhile, the disk has not failed."""
    try:
        partition.require_served()
    except KafkaError as gone:
        return gone.code
    partition.directory.fail(error)
    return ErrorCode.KAFKA_STORAGE_ERROR


async def _find_archived(
    services: Services, partition: Partition, wanted: ListOffsetsPartition
) -> TimestampedOffset | None:
    """Find the first record at or after a time, or with the largest timestamp; None unless only the archive has it."""
    if wanted.timestamp == MAX_TIMESTAMP:
        found = await services.archive_reads.offset_of_max_timestamp(partition)
    else:
        found = await services.archive_reads.offset_for_timestamp(partition, wanted.timestamp)
    # Other requests ran meanwhile: the leader may have changed, or the topic may be gone.
    partition.require_served()
    partition.require_epoch(wanted.current_leader_epoch)
    return found if 0 <= found.offset < partition.log.start_offset else None


async def _find(
    services: Services, partition: Partition, version: int, isolation: int, timestamp: int, audience: Audience
) -> TimestampedOffset:
    log = partition.log
    is_client = audience is Audience.CLIENT
    # A tool that compares replicas gets the log end, though it reads only committed records.
    limit = partition.reader.limit(Audience.CLIENT if is_client else Audience.REPLICA, isolation)
    if version < _SINCE_VERSION.get(timestamp, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == LATEST:
        if is_client and not partition.has_current_high_watermark:
            raise _not_available(version)
        return TimestampedOffset(limit, NO_TIMESTAMP)
    if timestamp == EARLIEST:
        return TimestampedOffset(partition.log_start_offset, NO_TIMESTAMP)
    if timestamp == EARLIEST_LOCAL:
        return TimestampedOffset(log.start_offset, NO_TIMESTAMP)
    if timestamp == LATEST_TIERED:
        return TimestampedOffset(partition.archived.end - 1 if partition.archived else NO_OFFSET, NO_TIMESTAMP)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        return TimestampedOffset(_first_to_archive(partition), NO_TIMESTAMP)
    if timestamp == MAX_TIMESTAMP:
        found = await log.offset_of_max_timestamp(limit, services.partitions.long_work)
    elif timestamp < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    else:
        found = await log.offset_for_timestamp(timestamp, limit, services.partitions.long_work)
    # Other requests ran meanwhile: the leader may have changed, or the topic may be gone.
    partition.require_served()
    if found.offset == NO_OFFSET and is_client and not partition.has_current_high_watermark:
        # The record may be one that is not known to be committed yet.
        raise _not_available(version)
    return found


def _first_to_archive(partition: Partition) -> int:
    """The first offset that the archive still lacks; none for a topic that is not archived."""
    if not partition.log.config.is_archived:
        return NO_OFFSET
    return max(partition.archived.end if partition.archived else 0, partition.log_start_offset)


def _not_available(version: int) -> KafkaError:
    is_known = version >= _OFFSET_NOT_AVAILABLE_FROM
    return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE)


API = Api(
    ListOffsetsRequest,
    1,
    11,
    handle,
    "Find the earliest or latest offset, or an offset by timestamp.",
    needs=(each(Operation.DESCRIBE, ResourceType.TOPIC),),
)
