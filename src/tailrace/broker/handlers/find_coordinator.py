"""FindCoordinator 0 to 6: there is no coordinator here yet, which clients are told as COORDINATOR_NOT_AVAILABLE.

It is served all the same because librdkafka takes a broker without it for one that cannot read lz4, and then sends
batches uncompressed.
"""

from __future__ import annotations

from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_ERROR = ErrorCode.COORDINATOR_NOT_AVAILABLE
_MESSAGE = "Consumer groups and transactions are not served by this broker."
_NOBODY = -1


def handle(services: Services, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=_ERROR,
        error_message=_MESSAGE,
        node_id=_NOBODY,
        port=_NOBODY,
        coordinators=[
            Coordinator(key=key, node_id=_NOBODY, port=_NOBODY, error_code=_ERROR, error_message=_MESSAGE)
            for key in request.coordinator_keys
        ],
    )
