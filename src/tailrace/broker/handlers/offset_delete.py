"""OffsetDelete 0: forget committed offsets of topics that no member of the group reads."""

from __future__ import annotations

import asyncio

from tailrace.broker import access
from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.security.needs import each, whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(services: Services, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    known: list[TopicPartition] = []
    refused: dict[str, ErrorCode] = {}
    for topic in request.topics:
        try:
            found = access.find_topic(services, context, Operation.READ, topic.name)
        except KafkaError as refusal:
            refused[topic.name] = refusal.code
            continue
        count = 0 if found is None else len(found.partitions)
        known += [
            TopicPartition(topic.name, item.partition_index)
            for item in topic.partitions
            if 0 <= item.partition_index < count
        ]
    try:
        result = services.groups.shard(request.group_id).delete_offsets(request.group_id, known)
        results = await asyncio.shield(result) if isinstance(result, asyncio.Future) else result
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=item.partition_index,
                        error_code=results.get(
                            TopicPartition(topic.name, item.partition_index),
                            refused.get(topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        ),
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API = Api(
    OffsetDeleteRequest,
    0,
    0,
    handle,
    "Delete committed offsets.",
    needs=(whole(Operation.DELETE, ResourceType.GROUP), each(Operation.READ, ResourceType.TOPIC)),
    refuse=refuse_with(OffsetDeleteResponse),
)
