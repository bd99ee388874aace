"""FindCoordinator 0 to 6: returns the coordinator of a group or of a transactional id.

Creates the topic that holds its state if it is missing. Share groups are not served yet: the response is
INVALID_REQUEST, as clients expect.
"""

from __future__ import annotations

import asyncio

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import CLUSTER_NAME, Operation, ResourceType
from tailrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

#: The key types of the protocol.
GROUP = 0
TRANSACTION = 1
_SHARE_GROUP = 2
_NOBODY = -1


async def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= 4 else [request.key]
    found = []
    for count, key in enumerate(keys, 1):
        found.append(await _find(services, context, request.key_type, key))
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
    if context.version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(services: Services, context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        _require(services, context, key_type, key)
        coordinator = services.coordinators.of_key_type(key_type)
        if coordinator is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator type {key_type}.")
        node_id, endpoint = await coordinator.locate(key, context.listener)
    except KafkaError as error:
        message = error.message or error.code.name
        return Coordinator(key=key, node_id=_NOBODY, port=_NOBODY, error_code=error.code, error_message=message)
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port)


def _require(services: Services, context: RequestContext, key_type: int, key: str) -> None:
    if key_type == GROUP:
        access.require(services, context, Operation.DESCRIBE, ResourceType.GROUP, key)
    elif key_type == TRANSACTION:
        access.require(services, context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
    elif key_type == _SHARE_GROUP:
        access.require(services, context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


API = Api(
    FindCoordinatorRequest,
    0,
    6,
    handle,
    "Find the broker that coordinates a group or a transactional id.",
    needs=(
        each(Operation.DESCRIBE, ResourceType.GROUP),
        each(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        each(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)
