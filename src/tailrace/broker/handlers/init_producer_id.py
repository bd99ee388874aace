"""InitProducerId 0 to 5: the identity of an idempotent producer, or of the producer of a transactional id.

Odd: a producer that names its current id and epoch asks for the next epoch (from version 3 on). While the last
transaction of a transactional id is being ended, the response is CONCURRENT_TRANSACTIONS, and the client asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.transaction_errors import producer_error
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tailrace.security.needs import each
from tailrace.security.operations import CLUSTER_NAME, Operation, ResourceType
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

#: The first version whose clients know PRODUCER_FENCED.
_FENCED_FROM = 4


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        if request.transactional_id is None:
            _require_idempotent(services, context)
            return InitProducerIdResponse(producer_id=await services.producer_ids.next())
        identity = await _initialize(services, context, request, request.transactional_id)
    except KafkaError as error:
        return InitProducerIdResponse(error_code=producer_error(error.code, context.version >= _FENCED_FROM))
    return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


async def _initialize(
    services: Services, context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> ProducerIdentity:
    access.require(services, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    services.transactions.require_enabled()
    known = ProducerIdentity(request.producer_id, request.producer_epoch)
    if (known.producer_id == NO_PRODUCER_ID) != (known.epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A producer id needs an epoch, and an epoch a producer id.")
    await services.producer_ids.reserve()
    # Nothing below awaits before the shard has decided.
    shard = access.find_transactional_id(services, context, Operation.WRITE, transactional_id)
    result = shard.initialize(
        transactional_id, None if known.producer_id == NO_PRODUCER_ID else known, request.transaction_timeout_ms
    )
    return await result if isinstance(result, Awaitable) else result


def _require_idempotent(services: Services, context: RequestContext) -> None:
    # A client that may write to any topic may write to it as an idempotent producer (KIP-679).
    if not access.is_allowed_on_any(services, context, Operation.WRITE, ResourceType.TOPIC):
        access.require(services, context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


API = Api(
    InitProducerIdRequest,
    0,
    5,
    handle,
    "Get the identity of an idempotent or transactional producer.",
    needs=(
        each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        each(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER).unless(each(Operation.WRITE, ResourceType.TOPIC)),
    ),
)
