"""ConsumerGroupDescribe 0 to 1: groups of the newer protocol, with what each member owns and shall own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.assignment import NOTHING
from tailrace.groups.assignment import Assignment as Partitions
from tailrace.groups.consumer import partitions_by_name
from tailrace.groups.consumer_group import ConsumerGroup, ConsumerMember
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1
_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Coroutine[Any, Any, ConsumerGroupDescribeResponse]:
    if len(request.group_ids) > ITEMS_PER_SLICE:
        return _describe_many(services, context, request)
    return _answer(services, context, request, [_describe(services, context, name) for name in request.group_ids])


async def _describe_many(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = await services.partitions.long_work.each(
        lambda name: _describe(services, context, name), request.group_ids
    )
    return _answer(services, context, request, groups)


def _answer(
    services: Services,
    context: RequestContext,
    request: ConsumerGroupDescribeRequest,
    groups: list[DescribedGroup],
) -> ConsumerGroupDescribeResponse:
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = access.authorized_operations(
                    services, context, ResourceType.GROUP, group.group_id
                )
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(services: Services, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        group = access.find_named_group(services, context, Operation.DESCRIBE, group_id).describe(group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    except KafkaError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
    default = services.groups.settings().consumer_assignors[0]
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor_name(group.members.values(), default),
        members=[_member(services, group, member) for member in group.members.values()],
    )
    if _tells_of_hidden_topics(services, context, described):
        return DescribedGroup(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=_HIDDEN_TOPICS, group_id=group_id
        )
    return described


def _tells_of_hidden_topics(services: Services, context: RequestContext, group: DescribedGroup) -> bool:
    """Whether members have partitions of topics that the client may not know of."""
    if services.authorizer is None:
        return False
    topics = {
        partitions.topic_name: None
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for partitions in assignment.topic_partitions
    }
    return len(list(access.allowed_topics(services, context, topics, str))) < len(topics)


def _member(services: Services, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(services, member.assigned),
        target_assignment=_assignment(services, group.target.get(member.member_id, NOTHING)),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(services: Services, partitions: Partitions) -> Assignment:
    named = partitions_by_name(partitions, services.metadata.image)
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers) for topic_id, name, numbers in named
        ]
    )


API = Api(
    ConsumerGroupDescribeRequest,
    0,
    1,
    handle,
    "Describe groups of the newer protocol.",
    needs=(each(Operation.DESCRIBE, ResourceType.GROUP), each(Operation.DESCRIBE, ResourceType.TOPIC)),
)
