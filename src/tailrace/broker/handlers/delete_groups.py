"""DeleteGroups 0 to 2: deletes groups without members, with their offsets."""

from __future__ import annotations

import asyncio

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    # A group that is named twice is deleted once.
    results = [
        DeletableGroupResult(group_id=group_id, error_code=await _delete(services, context, group_id))
        for group_id in dict.fromkeys(request.groups_names)
    ]
    return DeleteGroupsResponse(results=results)


async def _delete(services: Services, context: RequestContext, group_id: str) -> ErrorCode:
    try:
        result = access.find_named_group(services, context, Operation.DELETE, group_id).delete_group(group_id)
        return await asyncio.shield(result) if isinstance(result, asyncio.Future) else result
    except KafkaError as error:
        return error.code


API = Api(
    DeleteGroupsRequest,
    0,
    2,
    handle,
    "Delete groups that have no members.",
    needs=(each(Operation.DELETE, ResourceType.GROUP),),
)
