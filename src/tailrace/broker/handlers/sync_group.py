"""SyncGroup 0 to 5: returns a member's assignment once the leader's assignment is in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic import SyncCall
from tailrace.groups.classic_group import SyncResult
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_PROTOCOL_FROM = 5


def handle(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Coroutine[Any, Any, SyncGroupResponse]:
    if context.version >= _PROTOCOL_FROM and None in (request.protocol_type, request.protocol_name):
        return _response(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    call = SyncCall(
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        {item.member_id: bytes(item.assignment) for item in request.assignments},
    )
    try:
        result = services.groups.shard(request.group_id).sync(request.group_id, call)
    except KafkaError as error:
        # A loading coordinator has lost the rebalance. REBALANCE_IN_PROGRESS makes members rejoin at once.
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        result = SyncResult(code)
    if isinstance(result, asyncio.Future):
        return _wait(result)
    return _response(result)


async def _wait(result: asyncio.Future[SyncResult]) -> SyncGroupResponse:
    return _response(await asyncio.shield(result))


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


API = Api(
    SyncGroupRequest,
    0,
    5,
    handle,
    "Get a member's assignment from the leader's plan.",
    needs=(whole(Operation.READ, ResourceType.GROUP),),
    refuse=lambda version, request, error: _response(SyncResult(error.code)),
)
