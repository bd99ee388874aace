"""Heartbeat 0 to 4: a member shows that it is alive, and learns when it must rejoin.

Odd: while the coordinator loads, the response has no error; the member need not rejoin for that.
"""

from __future__ import annotations

from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    try:
        shard = services.groups.shard(request.group_id)
        error = shard.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    except KafkaError as refusal:
        error = refusal.code
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.NONE
    return HeartbeatResponse(error_code=error)


API = Api(
    HeartbeatRequest,
    0,
    4,
    handle,
    "Keep a member of a classic group alive.",
    needs=(whole(Operation.READ, ResourceType.GROUP),),
    refuse=refuse_with(HeartbeatResponse),
)
