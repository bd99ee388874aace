"""OffsetFetch 1 to 10: committed offsets; of one group up to version 7, of many from version 8 on.

Odd: null topics ask for all offsets. A partition without a commit gets -1 and no error, also if only an earlier topic
of the same name has a commit. Before version 2, an error of the group is repeated for each partition. From version 7 on
a consumer may ask for stable offsets: a partition with an offset of an open transaction gets an error, as its committed
offset may be about to change (KIP-447).
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
_NONE_PENDING: Mapping[TopicPartition, Sequence[CommittedOffset]] = {}


async def handle(services: Services, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version < _MANY_FROM:
        return await _one_group(services, context, request)
    groups = []
    for count, group in enumerate(request.groups, 1):
        groups.append(await _group(services, context, group, request.require_stable))
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return OffsetFetchResponse(groups=groups)


class _Offsets:
    """The committed offsets of a group, limited to topics that still exist."""

    def __init__(
        self,
        shard: GroupShard,
        offsets: Mapping[TopicPartition, CommittedOffset],
        pending: Mapping[TopicPartition, Sequence[CommittedOffset]],
    ) -> None:
        self._shard = shard
        self._offsets = offsets
        # Those of open transactions; none if the client does not ask for stable offsets.
        self._pending = pending

    def find(self, name: str, number: int) -> tuple[CommittedOffset, ErrorCode]:
        """Return the offset that applies to a partition; refuse if it is not known yet whether it applies."""
        place = TopicPartition(name, number)
        if self._pending and any(self._shard.counts(name, each) for each in self._pending.get(place, ())):
            return _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
        found = self._offsets.get(place)
        return found if found is not None and self._shard.counts(name, found) else _NOTHING, ErrorCode.NONE

    def by_topic(self, services: Services, context: RequestContext) -> list[tuple[str, list[int]]]:
        """Return the partitions with offsets that apply, of topics that the client may see."""
        topics: dict[str, list[int]] = {}
        for (name, number), committed in self._offsets.items():
            if self._shard.counts(name, committed):
                topics.setdefault(name, []).append(number)
        return list(access.allowed_topics(services, context, topics.items(), lambda item: item[0]))


async def _committed(
    services: Services,
    context: RequestContext,
    group_id: str,
    require_stable: bool,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> _Offsets:
    shard = access.find_group(services, context, Operation.DESCRIBE, group_id)
    result = shard.committed(group_id, member_id, member_epoch)
    # As they are now, like the committed ones: a transaction that ends meanwhile must not show in only one of the two.
    pending = shard.pending(group_id) if require_stable else _NONE_PENDING
    return _Offsets(shard, await asyncio.shield(result) if isinstance(result, asyncio.Future) else result, pending)


async def _one_group(services: Services, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    try:
        offsets = await _committed(services, context, request.group_id, request.require_stable)
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
                error_code=code,
            )
            for number in numbers
            for found, code in [offsets.find(name, number)]
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
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    try:
        offsets = await _committed(
            services, context, group.group_id, require_stable, group.member_id, group.member_epoch
        )
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
    found, code = offsets.find(name, number)
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=code,
    )


API = Api(
    OffsetFetchRequest,
    1,
    10,
    handle,
    "Read the committed offsets of groups.",
    needs=(each(Operation.DESCRIBE, ResourceType.GROUP), each(Operation.DESCRIBE, ResourceType.TOPIC)),
)
