"""OffsetFetch 1 to 10: from where groups go on; one group up to version 7, many from 8.

Odd: null topics ask for all offsets; a partition without one is answered with -1 and no error; before version 2 an
error of the group is told for each partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.offsets import NO_COMMITTED_OFFSET, CommittedOffset
from tailrace.model import TopicPartition
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_GROUP_ERROR_FROM = 2
_MANY_FROM = 8
_IDS_FROM = 10
_NOTHING = CommittedOffset(NO_COMMITTED_OFFSET)


async def handle(services: Services, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version < _MANY_FROM:
        return await _one_group(services, context.version, request)
    return OffsetFetchResponse(groups=[await _group(services, context.version, group) for group in request.groups])


async def _committed(
    services: Services, group_id: str, member_id: str | None = None, member_epoch: int = -1
) -> Mapping[TopicPartition, CommittedOffset]:
    result = services.groups.shard(group_id).committed(group_id, member_id, member_epoch)
    return await asyncio.shield(result) if isinstance(result, asyncio.Future) else result


async def _one_group(services: Services, version: int, request: OffsetFetchRequest) -> OffsetFetchResponse:
    error = ErrorCode.NONE
    offsets: Mapping[TopicPartition, CommittedOffset] = {}
    try:
        offsets = await _committed(services, request.group_id)
    except KafkaError as refusal:
        error = refusal.code
    wanted = (
        _by_topic(offsets)
        if request.topics is None
        else [(topic.name, topic.partition_indexes) for topic in request.topics]
    )
    if error is not ErrorCode.NONE and version >= _GROUP_ERROR_FROM:
        return OffsetFetchResponse(error_code=error)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=number,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=error,
                    )
                    for number in numbers
                    for found in [offsets.get(TopicPartition(name, number), _NOTHING)]
                ],
            )
            for name, numbers in wanted
        ]
    )


async def _group(services: Services, version: int, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    try:
        offsets = await _committed(services, group.group_id, group.member_id, group.member_epoch)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    image = services.metadata.image
    answered: list[OffsetFetchResponseTopics] = []
    if group.topics is None:
        for name, numbers in _by_topic(offsets):
            topic = image.topics.get(name)
            if topic is not None or version < _IDS_FROM:
                partitions = [_partition(offsets, name, number) for number in numbers]
                answered.append(OffsetFetchResponseTopics(name=name, partitions=partitions))
                if topic is not None:
                    answered[-1].topic_id = topic.topic_id
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=answered)
    for wanted in group.topics:
        known = image.topics_by_id.get(wanted.topic_id) if version >= _IDS_FROM else None
        if version >= _IDS_FROM and known is None:
            partitions = [
                OffsetFetchResponsePartitions(
                    partition_index=number,
                    committed_offset=NO_COMMITTED_OFFSET,
                    metadata="",
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                )
                for number in wanted.partition_indexes
            ]
        else:
            name = wanted.name if known is None else known.name
            partitions = [_partition(offsets, name, number) for number in wanted.partition_indexes]
        answered.append(OffsetFetchResponseTopics(name=wanted.name, topic_id=wanted.topic_id, partitions=partitions))
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=answered)


def _partition(
    offsets: Mapping[TopicPartition, CommittedOffset], name: str, number: int
) -> OffsetFetchResponsePartitions:
    found = offsets.get(TopicPartition(name, number), _NOTHING)
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _by_topic(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for partition in offsets:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return list(topics.items())
