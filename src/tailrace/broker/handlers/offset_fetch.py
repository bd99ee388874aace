"""OffsetFetch 1 to 10: committed offsets; of one group up to version 7, of many from version 8 on.

Odd: null topics ask for all offsets. A partition without a commit gets -1 and no error, also if only an earlier topic
of the same name has a commit. Before version 2, an error of the group is repeated for each partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.committed_offset import NO_COMMITTED_OFFSET, CommittedOffset
from tailrace.groups.shard import GroupShard
from tailrace.model import TopicPartition
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
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
        return await _one_group(services, context, request)
    groups = []
    for count, group in enumerate(request.groups, 1):
        groups.append(await _group(services, context, group))
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return OffsetFetchResponse(groups=groups)


class _Offsets:
    """The committed offsets of a group, limited to topics that still exist."""

    def __init__(self, shard: GroupShard, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._shard = shard
        self._offsets = offsets

    def find(self, name: str, number: int) -> CommittedOffset | None:
        """Return the offset that applies to a partition; refuse if it is not known yet whether it applies."""
        found = self._offsets.get(TopicPartition(name, number))
        return found if found is not None and self._shard.counts(name, found) else None

    def by_topic(self, services: Services, context: RequestContext) -> list[tuple[str, list[int]]]:
        """Return the partitions with offsets that apply, of topics that the client may see."""
        topics: dict[str, list[int]] = {}
        for (name, number), committed in self._offsets.items():
            if self._shard.counts(name, committed):
                topics.setdefault(name, []).append(number)
        return list(access.allowed_topics(services, context, topics.items(), lambda item: item[0]))


async def _committed(
    services: Services, context: RequestContext, group_id: str, member_id: str | None = None, member_epoch: int = -1
) -> _Offsets:
    shard = access.find_group(services, context, Operation.DESCRIBE, group_id)
    result = shard.committed(group_id, member_id, member_epoch)
    return _Offsets(shard, await asyncio.shield(result) if isinstance(result, asyncio.Future) else result)


async def _one_group(services: Services, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    try:
        offsets = await _committed(services, context, request.group_id)
        if request.topics is None:
            return OffsetFetchResponse(
                topics=[_found(name, numbers, offsets) for name, numbers in offsets.by_topic(services, context)]
            )
        return OffsetFetchResponse(topics=[_topic(services, context, topic, offsets) for topic in request.topics])
    except KafkaError as error:
        if context.version >= _GROUP_ERROR_FROM:
            return OffsetFetchResponse(error_code=error.code)
        # Before version 2, the response has no error code of its own.
        return OffsetFetchResponse(topics=[_refused(topic, error.code) for topic in request.topics or ()])


def _topic(
    services: Services, context: RequestContext, topic: OffsetFetchRequestTopic, offsets: _Offsets
) -> OffsetFetchResponseTopic:
    try:
        access.require_topic(services, context, Operation.DESCRIBE, topic.name)
    except KafkaError as refusal:
        return _refused(topic, refusal.code)
    return _found(topic.name, topic.partition_indexes, offsets)


def _found(name: str, numbers: Sequence[int], offsets: _Offsets) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=number,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
            )
            for number in numbers
            for found in [offsets.find(name, number) or _NOTHING]
        ],
    )


def _refused(topic: OffsetFetchRequestTopic, code: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=number, committed_offset=NO_COMMITTED_OFFSET, metadata="", error_code=code
            )
            for number in topic.partition_indexes
        ],
    )


async def _group(
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    try:
        offsets = await _committed(services, context, group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            return OffsetFetchResponseGroup(group_id=group.group_id, topics=_all_of_group(services, context, offsets))
        answered = [_topic_of_group(services, context, wanted, offsets) for wanted in group.topics]
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=answered)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)


def _all_of_group(services: Services, context: RequestContext, offsets: _Offsets) -> list[OffsetFetchResponseTopics]:
    answered = []
    for name, numbers in offsets.by_topic(services, context):
        topic = access.find_topic(services, context, Operation.DESCRIBE, name)
        if topic is None and context.version >= _IDS_FROM:
            continue
        answer = OffsetFetchResponseTopics(
            name=name, partitions=[_partition(offsets, name, number) for number in numbers]
        )
        if topic is not None:
            answer.topic_id = topic.topic_id
        answered.append(answer)
    return answered


def _topic_of_group(
    services: Services, context: RequestContext, wanted: OffsetFetchRequestTopics, offsets: _Offsets
) -> OffsetFetchResponseTopics:
    name = wanted.name
    try:
        if context.version < _IDS_FROM:
            access.require_topic(services, context, Operation.DESCRIBE, name)
        else:
            known = access.find_topic(services, context, Operation.DESCRIBE, wanted.topic_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = known.name
    except KafkaError as refusal:
        partitions = [
            OffsetFetchResponsePartitions(
                partition_index=number,
                committed_offset=NO_COMMITTED_OFFSET,
                metadata="",
                error_code=refusal.code,
            )
            for number in wanted.partition_indexes
        ]
    else:
        partitions = [_partition(offsets, name, number) for number in wanted.partition_indexes]
    return OffsetFetchResponseTopics(name=wanted.name, topic_id=wanted.topic_id, partitions=partitions)


def _partition(offsets: _Offsets, name: str, number: int) -> OffsetFetchResponsePartitions:
    found = offsets.find(name, number) or _NOTHING
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


API = Api(
    OffsetFetchRequest,
    1,
    10,
    handle,
    "Read the committed offsets of groups.",
    needs=(each(Operation.DESCRIBE, ResourceType.GROUP), each(Operation.DESCRIBE, ResourceType.TOPIC)),
)
