"""InitProducerId 0 to 5: returns a new id with epoch 0 to an idempotent producer. Transactions are not served yet."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import CLUSTER_NAME, Operation, ResourceType
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _require(services, context, request.transactional_id)
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return InitProducerIdResponse(producer_id=await services.producer_ids.next())
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code)


def _require(services: Services, context: RequestContext, transactional_id: str | None) -> None:
    if transactional_id is not None:
        access.require(services, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    # A client that may write to any topic may write to it as an idempotent producer (KIP-679).
    elif not access.is_allowed_on_any(services, context, Operation.WRITE, ResourceType.TOPIC):
        access.require(services, context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


API = Api(
    InitProducerIdRequest,
    0,
    5,
    handle,
    "Get the identity of an idempotent producer. Refuses a transactional id.",
    needs=(
        each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        each(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER).unless(each(Operation.WRITE, ResourceType.TOPIC)),
    ),
)
