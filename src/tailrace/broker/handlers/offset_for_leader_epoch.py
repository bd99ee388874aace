"""OffsetForLeaderEpoch 2 to 4: where an epoch ended, so that a reader can tell whether its log was truncated (KIP-320).

Odd: the current epoch ends at the log end, not at the high watermark, which a new leader does not know yet: a reader
beyond that would believe that records were lost. In an epoch without a leader, a controller asks the replicas with
replica id -2. A peer that names a broker must have proved its identity.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.leading.log_ends import ANY_REPLICA
from tailrace.broker.peer_identity import require_broker
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import NO_LEADER
from tailrace.errors import ErrorCode, KafkaError
from tailrace.replication.partition import Partition
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

#: The replica id of a client.
_CLIENT = -1


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    may_act = access.is_allowed_on_cluster(services, context, Operation.CLUSTER_ACTION)
    find = access.partition_finder(services, context, None if may_act else Operation.DESCRIBE, False)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _look_up(services, context, find, topic.topic, wanted, request.replica_id)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _look_up(
    services: Services,
    context: RequestContext,
    find: Callable[[str, int], Partition],
    topic: str,
    wanted: OffsetForLeaderPartition,
    replica_id: int,
) -> EpochEndOffset:
    try:
        if replica_id >= 0:
            require_broker(services, context, replica_id)
        partition = find(topic, wanted.partition)
        if replica_id == ANY_REPLICA and partition.leader_id == NO_LEADER:
            partition.require_whole(wanted.current_leader_epoch)
            # An epoch without a leader has no records: the last record counts, whatever its epoch.
            end_offset, epoch = partition.following.last_position()
            return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
        partition.require_leader(wanted.current_leader_epoch, by_replica=replica_id != _CLIENT)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_LEADER_EPOCH and replica_id == ANY_REPLICA:
            # An election waits for this broker, but not for long.
            services.metadata.look_soon(lambda: partition.leader_epoch >= wanted.current_leader_epoch)
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    epoch, end_offset = partition.log.leader_epochs.end_offset_for(wanted.leader_epoch, partition.log.end_offset)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


API = Api(
    OffsetForLeaderEpochRequest,
    2,
    4,
    handle,
    "Find where a leader epoch ended.",
    needs=(each(Operation.DESCRIBE, ResourceType.TOPIC).unless(each(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)),),
)
