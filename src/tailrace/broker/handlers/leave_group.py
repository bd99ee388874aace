"""LeaveGroup 0 to 5: members go; from version 3 on several at once, static ones by their instance id."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.groups.classic import Identity, Left
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

_SEVERAL_FROM = 3


def handle(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Coroutine[Any, Any, LeaveGroupResponse]:
    if context.version >= _SEVERAL_FROM:
        identities = [Identity(member.member_id, member.group_instance_id) for member in request.members]
    else:
        identities = [Identity(request.member_id, None)]
    try:
        left = services.groups.shard(request.group_id).leave(request.group_id, identities)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    return _wait(context.version, left) if isinstance(left, asyncio.Future) else _response(context.version, left)


async def _wait(version: int, left: asyncio.Future[list[Left]]) -> LeaveGroupResponse:
    try:
        return _response(version, await asyncio.shield(left))
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)


def _response(version: int, left: list[Left]) -> LeaveGroupResponse:
    if version < _SEVERAL_FROM:
        return LeaveGroupResponse(error_code=left[0].error)
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.instance_id, error_code=member.error)
            for member in left
        ]
    )


API = Api(
    LeaveGroupRequest,
    0,
    5,
    handle,
    "Remove members from a classic group.",
    needs=(whole(Operation.READ, ResourceType.GROUP),),
    refuse=refuse_with(LeaveGroupResponse),
)
