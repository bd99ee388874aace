"""OffsetFetch 1 to 10: from where groups go on; one group up to version 7, many from 8.

Odd: null topics ask for all offsets; a partition without one is answered with -1 and no error, and so is one that only
an earlier topic of its name has one for; before version 2 an error of the group is told for each partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import ClusterImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.offsets import NO_COMMITTED_OFFSET, CommittedOffset
from tailrace.groups.shard import GroupShard
from tailrace.model import TopicPartition
from tailrace.runtime.long_work import ITEMS_PER_SLICE
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
    groups = []
    for count, group in enumerate(request.groups, 1):
        groups.append(await _group(services, context.version, group))
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return OffsetFetchResponse(groups=groups)


class _Offsets:
    """What a group has committed, as far as it is of the topics that there are now."""

    def __init__(self, shard: GroupShard, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._shard = shard
        self._offsets = offsets

    def find(self, name: str, number: int) -> CommittedOffset | None:
        """What counts for a partition; refused while it cannot be known whether that does."""
        found = self._offsets.get(TopicPartition(name, number))
        return found if found is not None and self._shard.counts(name, found) else None

    def by_topic(self) -> list[tuple[str, list[int]]]:
        """The partitions of all that counts."""
        topics: dict[str, list[int]] = {}
        for (name, number), committed in self._offsets.items():
            if self._shard.counts(name, committed):
                topics.setdefault(name, []).append(number)
        return list(topics.items())


async def _committed(
    services: Services, group_id: str, member_id: str | None = None, member_epoch: int = -1
) -> _Offsets:
    shard = services.groups.shard(group_id)
    result = shard.committed(group_id, member_id, member_epoch)
    return _Offsets(shard, await asyncio.shield(result) if isinstance(result, asyncio.Future) else result)


async def _one_group(services: Services, version: int, request: OffsetFetchRequest) -> OffsetFetchResponse:
    try:
        offsets = await _committed(services, request.group_id)
        wanted = (
            offsets.by_topic()
            if request.topics is None
            else [(topic.name, topic.partition_indexes) for topic in request.topics]
        )
        return _found(wanted, offsets)
    except KafkaError as error:
        if version >= _GROUP_ERROR_FROM:
            return OffsetFetchResponse(error_code=error.code)
        return _refused(request, error.code)


def _found(wanted: Sequence[tuple[str, Sequence[int]]], offsets: _Offsets) -> OffsetFetchResponse:
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
                    )
                    for number in numbers
                    for found in [offsets.find(name, number) or _NOTHING]
                ],
            )
            for name, numbers in wanted
        ]
    )


def _refused(request: OffsetFetchRequest, code: ErrorCode) -> OffsetFetchResponse:
    """How it was told before there was an error of the whole answer."""
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=number, committed_offset=NO_COMMITTED_OFFSET, metadata="", error_code=code
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


async def _group(services: Services, version: int, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    try:
        offsets = await _committed(services, group.group_id, group.member_id, group.member_epoch)
        return _found_of_group(services.metadata.image, version, group, offsets)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)


def _found_of_group(
    image: ClusterImage, version: int, group: OffsetFetchRequestGroup, offsets: _Offsets
) -> OffsetFetchResponseGroup:
    answered: list[OffsetFetchResponseTopics] = []
    if group.topics is None:
        for name, numbers in offsets.by_topic():
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


def _partition(offsets: _Offsets, name: str, number: int) -> OffsetFetchResponsePartitions:
    found = offsets.find(name, number) or _NOTHING
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


API = Api(OffsetFetchRequest, 1, 10, handle, "From where groups go on.")
