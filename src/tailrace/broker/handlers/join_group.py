"""JoinGroup 0 to 9: answered when the generation that the member belongs to is complete.

Odd: before version 1 the session timeout is also the rebalance timeout; from 4 on a newcomer is given an id first and
comes back with it; a null protocol exists only from 7 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.groups.classic import JoinCall
from tailrace.groups.classic_group import JoinResult, MemberProtocol
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

_REBALANCE_TIMEOUT_FROM = 1
_KNOWN_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_ASSIGNMENT_FROM = 9


def handle(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Coroutine[Any, Any, JoinGroupResponse]:
    version = context.version
    call = JoinCall(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if version >= _REBALANCE_TIMEOUT_FROM else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple(MemberProtocol(item.name, bytes(item.metadata)) for item in request.protocols),
        needs_known_id=version >= _KNOWN_ID_FROM,
        can_skip_assignment=version >= _SKIP_ASSIGNMENT_FROM,
    )
    try:
        result = services.groups.shard(request.group_id).join(request.group_id, call)
    except KafkaError as error:
        result = JoinResult(error.code, member_id=request.member_id)
    if isinstance(result, asyncio.Future):
        return _wait(version, request.member_id, result)
    return _response(version, result)


async def _wait(version: int, member_id: str, result: asyncio.Future[JoinResult]) -> JoinGroupResponse:
    try:
        # Shielded: a member whose connection broke is still being joined, and comes back for it.
        return _response(version, await asyncio.shield(result))
    except KafkaError as error:
        return _response(version, JoinResult(error.code, member_id=member_id))


def _response(version: int, result: JoinResult) -> JoinGroupResponse:
    protocol = result.protocol
    if protocol is None and version < _NULL_PROTOCOL_FROM:
        protocol = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )


API = Api(
    JoinGroupRequest,
    0,
    9,
    handle,
    "Join a classic group, or its next generation.",
    needs=(whole(Operation.READ, ResourceType.GROUP),),
    refuse=lambda version, request, error: _response(version, JoinResult(error.code)),
)
