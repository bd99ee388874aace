"""TxnOffsetCommit 0 to 5: stores a group's offsets, which take effect once the producer's transaction is committed.

Odd: an unknown topic gets an error, and the others are committed; any other error is on every partition. Up to version
1 a coordinator that is loading says that it is not available, because such producers fail on the other error.
"""

from __future__ import annotations

import asyncio

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.broker.transactional_appends import LATER
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.commits import Committer, Offset
from tailrace.model import TopicPartition
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

#: From these versions on, producers know that a coordinator may be loading, and TRANSACTION_ABORTABLE.
_LOADING_FROM = 2
_ABORTABLE_FROM = 4
#: From this version on, the group's partition is added to the transaction; before, the producer has added it.
_ADDED_FROM = 5


async def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    try:
        _require(services, context, request)
        offsets, refused = _sort(services, context, request)
        if offsets:
            await _admit(services, context, request)
            refused.update(await _commit(services, context, request, offsets))
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < _LOADING_FROM:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = {place: code for topic in request.topics for place in _places(topic)}
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=place.partition, error_code=refused.get(place, ErrorCode.NONE)
                    )
                    for place in _places(topic)
                ],
            )
            for topic in request.topics
        ]
    )


async def _admit(services: Services, context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    """Make sure that the group's partition of the offsets topic is part of the producer's transaction.

    The offsets must be written before anything else is awaited: a marker could come meanwhile.
    """
    code = await services.transactional_appends.admit(
        access.find_partition_of_group(services, context, Operation.READ, request.group_id),
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        is_added=context.version >= _ADDED_FROM,
    )
    if code in LATER:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    if code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
        is_known = context.version >= _ABORTABLE_FROM
        raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE if is_known else ErrorCode.INVALID_TXN_STATE)
    if code is ErrorCode.PRODUCER_FENCED:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "Another producer has taken the transactional id.")
    if code is not ErrorCode.NONE:
        raise KafkaError(code)


def _require(services: Services, context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    access.require(services, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    access.find_named_group(services, context, Operation.READ, request.group_id)


def _sort(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> tuple[list[Offset], dict[TopicPartition, ErrorCode]]:
    """Return the offsets of partitions that exist, and the errors of the others."""
    offsets: list[Offset] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        count, missing = 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            known = access.find_topic(services, context, Operation.READ, topic.name)
            count = 0 if known is None else len(known.partitions)
        except KafkaError as refusal:
            missing = refusal.code
        for place, item in zip(_places(topic), topic.partitions, strict=True):
            if 0 <= place.partition < count:
                offsets.append((place, item.committed_offset, item.committed_leader_epoch, item.committed_metadata))
            else:
                refused[place] = missing
    return offsets, refused


async def _commit(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest, offsets: list[Offset]
) -> dict[TopicPartition, ErrorCode]:
    """Write the offsets; return those that the group refuses, once the others are committed to the log."""
    # Found again: another broker may coordinate the group by now.
    shard = access.find_group(services, context, Operation.READ, request.group_id)
    result = shard.commit_in_transaction(
        request.group_id,
        Committer(request.member_id, request.group_instance_id, request.generation_id),
        request.producer_id,
        request.producer_epoch,
        offsets,
    )
    # The records are in the log, whether or not the client waits.
    return await asyncio.shield(result) if isinstance(result, asyncio.Future) else result


def _places(topic: TxnOffsetCommitRequestTopic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, item.partition_index) for item in topic.partitions]


API = Api(
    TxnOffsetCommitRequest,
    0,
    5,
    handle,
    "Commit a group's offsets in a transaction.",
    needs=(
        each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        each(Operation.READ, ResourceType.GROUP),
        each(Operation.READ, ResourceType.TOPIC),
    ),
)
