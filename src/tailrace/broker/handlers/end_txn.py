"""EndTxn 0 to 5: commits or aborts a transaction; answered when the outcome is decided, before its markers are written.

Odd: from version 5 on the response has the identity for the next transaction, whose epoch is another one (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.transaction_errors import producer_error
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_FROM = 2
_NEW_EPOCH_FROM = 5


async def handle(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    try:
        shard = access.find_transactional_id(services, context, Operation.WRITE, request.transactional_id)
        # The version, not the cluster's features, tells which protocol this producer speaks.
        ended = shard.end_transaction(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            with_new_epoch=context.version >= _NEW_EPOCH_FROM,
        )
        identity = await ended if isinstance(ended, Awaitable) else ended
    except KafkaError as error:
        return EndTxnResponse(error_code=producer_error(error.code, context.version >= _FENCED_FROM))
    return EndTxnResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


API = Api(
    EndTxnRequest,
    0,
    5,
    handle,
    "Commit or abort a transaction.",
    needs=(each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),),
)
