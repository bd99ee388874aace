"""OffsetCommit 2 to 10: how far a group has come, kept in the offsets topic before it is acknowledged.

Odd: topics are named by id from version 10; an unknown topic is refused for itself and the rest is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tailrace.broker.services import RequestContext, Services
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


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Coroutine[Any, Any, OffsetCommitResponse]:
    names = [_name(services, context.version, topic) for topic in request.topics]
    topics = services.metadata.image.topics
    known = [
        (
            TopicPartition(name, item.partition_index),
            item.committed_offset,
            item.committed_leader_epoch,
            item.committed_metadata,
        )
        for name, topic in zip(names, request.topics, strict=True)
        if name is not None and name in topics
        for item in topic.partitions
        if 0 <= item.partition_index < len(topics[name].partitions)
    ]
    try:
        result = services.groups.shard(request.group_id).commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            request.retention_time_ms,
            known,
        )
    except KafkaError as error:
        return _respond(context.version, request, names, {}, error.code)
    if isinstance(result, asyncio.Future):
        return _wait(context.version, request, names, result)
    return _respond(context.version, request, names, result)


async def _wait(
    version: int,
    request: OffsetCommitRequest,
    names: list[str | None],
    result: asyncio.Future[dict[TopicPartition, ErrorCode]],
) -> OffsetCommitResponse:
    try:
        return _respond(version, request, names, await asyncio.shield(result))
    except KafkaError as error:
        return _respond(version, request, names, {}, error.code)


def _name(services: Services, version: int, topic: OffsetCommitRequestTopic) -> str | None:
    if version < _IDS_FROM:
        return topic.name
    known = services.metadata.image.topics_by_id.get(topic.topic_id)
    return None if known is None else known.name


def _respond(
    version: int,
    request: OffsetCommitRequest,
    names: list[str | None],
    results: dict[TopicPartition, ErrorCode],
    refusal: ErrorCode | None = None,
) -> OffsetCommitResponse:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= _IDS_FROM else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=(
                            refusal
                            if refusal is not None
                            else unknown
                            if name is None
                            else results.get(
                                TopicPartition(name, item.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                            )
                        ),
                    )
                    for item in topic.partitions
                ],
            )
            for name, topic in zip(names, request.topics, strict=True)
        ]
    )
