"""DescribeGroups 0 to 6: members and assignments of classic groups.

Odd: before version 6, a group that does not exist is described as Dead.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic_group import ClassicGroup, GroupState
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_NOT_FOUND_FROM = 6


def handle(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse | Coroutine[Any, Any, DescribeGroupsResponse]:
    if len(request.groups) > ITEMS_PER_SLICE:
        return _describe_many(services, context, request)
    return _answer(services, context, request, [_describe(services, context, name) for name in request.groups])


async def _describe_many(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    groups = await services.partitions.long_work.each(lambda name: _describe(services, context, name), request.groups)
    return _answer(services, context, request, groups)


def _answer(
    services: Services, context: RequestContext, request: DescribeGroupsRequest, groups: list[DescribedGroup]
) -> DescribeGroupsResponse:
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = access.authorized_operations(
                    services, context, ResourceType.GROUP, group.group_id
                )
    return DescribeGroupsResponse(groups=groups)


def _describe(services: Services, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        group = access.find_group(services, context, Operation.DESCRIBE, group_id).describe(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            code = error.code if context.version >= _NOT_FOUND_FROM else ErrorCode.NONE
            return DescribedGroup(
                error_code=code, error_message=error.message, group_id=group_id, group_state=GroupState.DEAD.value
            )
        return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
    state = group.shown_state
    is_settled = state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_settled else "",
        members=_members(group, is_settled=is_settled),
    )


def _members(group: ClassicGroup, *, is_settled: bool) -> list[DescribedGroupMember]:
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # While a group rebalances, its next protocol is not known.
            member_metadata=member.metadata_for(group.protocol) if is_settled else b"",
            member_assignment=member.assignment if is_settled else b"",
        )
        for member in group.members.values()
    ]


API = Api(
    DescribeGroupsRequest,
    0,
    6,
    handle,
    "Describe the members and assignments of classic groups.",
    needs=(each(Operation.DESCRIBE, ResourceType.GROUP),),
)
