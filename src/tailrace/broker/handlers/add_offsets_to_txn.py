"""AddOffsetsToTxn 0 to 4: adds the partition of `__consumer_offsets` that has a group's offsets to a transaction.

Odd: clients look for the coordinator of the group only afterwards, so this may be what creates the topic.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.transaction_errors import producer_error
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_FENCED_FROM = 2


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    try:
        access.find_transactional_id(services, context, Operation.WRITE, request.transactional_id)
        access.require(services, context, Operation.READ, ResourceType.GROUP, request.group_id)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        partition = await services.groups.created_partition_of(request.group_id)
        # Found again: another broker may coordinate the transactional id by now.
        shard = access.find_transactional_id(services, context, Operation.WRITE, request.transactional_id)
        added = shard.add_partitions(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            [partition],
        )
        if isinstance(added, Awaitable):
            await added
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=producer_error(error.code, context.version >= _FENCED_FROM))
    return AddOffsetsToTxnResponse()


API = Api(
    AddOffsetsToTxnRequest,
    0,
    4,
    handle,
    "Add the offsets of a group to a transaction.",
    needs=(each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID), each(Operation.READ, ResourceType.GROUP)),
)
