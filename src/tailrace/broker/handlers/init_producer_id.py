"""InitProducerId 0 to 5: a fresh id with epoch 0 for an idempotent producer. Transactions are not served yet."""

from __future__ import annotations

from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        return InitProducerIdResponse(producer_id=await services.producer_ids.next())
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code)


API = Api(InitProducerIdRequest, 0, 5, handle, "An identity for an idempotent producer.")
