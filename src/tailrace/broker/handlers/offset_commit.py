"""OffsetCommit 2 to 10: how far a group has come, kept in the offsets topic before it is acknowledged.

Odd: topics are named by id from version 10; an unknown topic is refused for itself and the rest is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias

from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_IDS_FROM = 10

#: A partition that exists, and the place in the response that says what became of its offset.
_Asked: TypeAlias = tuple[TopicPartition, OffsetCommitResponsePartition]


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Coroutine[Any, Any, OffsetCommitResponse]:
    response = OffsetCommitResponse(topics=[])
    asked: list[_Asked] = []
    offsets: list[tuple[TopicPartition, int, int, str | None]] = []
    image = services.metadata.image
    for topic in request.topics:
        known, missing = _find(image, context.version, topic)
        answers = []
        for item in topic.partitions:
            index = item.partition_index
            answer = OffsetCommitResponsePartition(partition_index=index, error_code=missing)
            answers.append(answer)
            if known is not None and 0 <= index < len(known.partitions):
                place = TopicPartition(known.name, index)
                asked.append((place, answer))
                offsets.append((place, item.committed_offset, item.committed_leader_epoch, item.committed_metadata))
        response.topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    try:
        result = services.groups.shard(request.group_id).commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            request.retention_time_ms,
            offsets,
        )
    except KafkaError as error:
        return _refused(response, error.code)
    if isinstance(result, asyncio.Future):
        return _wait(response, asked, result)
    return _filled(response, asked, result)


async def _wait(
    response: OffsetCommitResponse, asked: list[_Asked], result: asyncio.Future[dict[TopicPartition, ErrorCode]]
) -> OffsetCommitResponse:
    try:
        return _filled(response, asked, await asyncio.shield(result))
    except KafkaError as error:
        return _refused(response, error.code)


def _find(image: ClusterImage, version: int, topic: OffsetCommitRequestTopic) -> tuple[TopicImage | None, ErrorCode]:
    """The topic that is meant, and the error of what it does not have."""
    if version < _IDS_FROM:
        return image.topics.get(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known = image.topics_by_id.get(topic.topic_id)
    return known, ErrorCode.UNKNOWN_TOPIC_ID if known is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _filled(
    response: OffsetCommitResponse, asked: list[_Asked], results: dict[TopicPartition, ErrorCode]
) -> OffsetCommitResponse:
    for place, answer in asked:
        answer.error_code = results[place]
    return response


def _refused(response: OffsetCommitResponse, code: ErrorCode) -> OffsetCommitResponse:
    for topic in response.topics:
        for answer in topic.partitions:
            answer.error_code = code
    return response
