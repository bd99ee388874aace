"""OffsetCommit 2 to 10: stores a group's offsets in the offsets topic before it acknowledges them.

Odd: topics are named by id from version 10 on; an unknown topic gets an error, and the others are committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import Later, RequestContext, Services
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.runtime.outcome import Outcome
from tailrace.security.needs import each, whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_IDS_FROM = 10
_MISSING_GROUPS_FROM = 9

#: A partition that exists, and its place in the response.
_Asked: TypeAlias = tuple[TopicPartition, OffsetCommitResponsePartition]


def handle(services: Services, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse | Later:
    response = OffsetCommitResponse(topics=[])
    asked: list[_Asked] = []
    offsets: list[tuple[TopicPartition, int, int, str | None]] = []
    for topic in request.topics:
        known, missing = _find(services, context, topic)
        count = 0 if known is None else len(known.partitions)
        answers = []
        for item in topic.partitions:
            index = item.partition_index
            answer = OffsetCommitResponsePartition(partition_index=index)
            answers.append(answer)
            if known is not None and 0 <= index < count:
                place = TopicPartition(known.name, index)
                asked.append((place, answer))
                offsets.append((place, item.committed_offset, item.committed_leader_epoch, item.committed_metadata))
            else:
                answer.error_code = missing
                services.counters.refused(ApiKey.OFFSET_COMMIT, missing)
        response.topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    try:
        refused, written = services.groups.shard(request.group_id).commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            request.retention_time_ms,
            offsets,
        )
    except KafkaError as error:
        return _refuse_all(services, response, _in_version(error.code, context.version))
    if refused:
        _refuse(services, asked, refused)
    return response if written is None else Later(written, partial(_finish, services, response))


def _finish(services: Services, response: OffsetCommitResponse, written: Outcome[None]) -> OffsetCommitResponse:
    """Return the response once the offsets are committed or refused, all together."""
    error = written.exception()
    if error is None:
        return response
    if not isinstance(error, KafkaError):
        raise error
    return refuse(services, response, error)


def refuse(services: Services, response: OffsetCommitResponse, error: KafkaError) -> OffsetCommitResponse:
    """Return the response when none of the offsets could be written."""
    return _refuse_all(services, response, error.code)


def _find(
    services: Services, context: RequestContext, topic: OffsetCommitRequestTopic
) -> tuple[TopicImage | None, ErrorCode]:
    """Find the topic, and the error for a partition that it does not have."""
    by_id = context.version >= _IDS_FROM
    try:
        known = access.find_topic(services, context, Operation.READ, topic.topic_id if by_id else topic.name)
    except KafkaError as refusal:
        return None, refusal.code
    return known, ErrorCode.UNKNOWN_TOPIC_ID if by_id and known is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refuse_request(version: int, request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    """Return the response to a client that may not commit offsets of the group."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=item.partition_index, error_code=error.code)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _in_version(code: ErrorCode, version: int) -> ErrorCode:
    """Clients of earlier versions know no error for a missing group; ILLEGAL_GENERATION makes them rejoin."""
    if code is ErrorCode.GROUP_ID_NOT_FOUND and version < _MISSING_GROUPS_FROM:
        return ErrorCode.ILLEGAL_GENERATION
    return code


def _refuse(services: Services, asked: list[_Asked], refused: Mapping[TopicPartition, ErrorCode]) -> None:
    for place, answer in asked:
        code = refused.get(place)
        if code is not None:
            answer.error_code = code
            services.counters.refused(ApiKey.OFFSET_COMMIT, code)


def _refuse_all(services: Services, response: OffsetCommitResponse, code: ErrorCode) -> OffsetCommitResponse:
    for topic in response.topics:
        for answer in topic.partitions:
            answer.error_code = code
            services.counters.refused(ApiKey.OFFSET_COMMIT, code)
    return response


API = Api(
    OffsetCommitRequest,
    2,
    10,
    handle,
    "Commit a group's offsets.",
    needs=(whole(Operation.READ, ResourceType.GROUP), each(Operation.READ, ResourceType.TOPIC)),
    refuse=_refuse_request,
)
