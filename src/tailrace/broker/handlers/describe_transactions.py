"""DescribeTransactions 0: the transactions of transactional ids.

Odd: once the outcome of a transaction is decided, its partitions are those that lack their marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.transactions.states import Transaction
from tailrace.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


async def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    states = []
    for count, transactional_id in enumerate(request.transactional_ids, 1):
        states.append(await _describe(services, context, transactional_id))
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(services: Services, context: RequestContext, transactional_id: str) -> TransactionState:
    try:
        shard = access.find_transactional_id(services, context, Operation.DESCRIBE, transactional_id)
        found = shard.describe(transactional_id)
        transaction = await found if isinstance(found, Awaitable) else found
    except KafkaError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.shown,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=_topics(services, context, transaction),
    )


def _topics(services: Services, context: RequestContext, transaction: Transaction) -> list[TopicData]:
    topics: dict[str, TopicData] = {}
    for name, number in transaction.partitions:
        if name not in topics and access.is_allowed(services, context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            topics[name] = TopicData(topic=name, partitions=[])
        if name in topics:
            topics[name].partitions.append(number)
    return list(topics.values())


API = Api(
    DescribeTransactionsRequest,
    0,
    0,
    handle,
    "Describe the transactions of transactional ids.",
    needs=(each(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID), each(Operation.DESCRIBE, ResourceType.TOPIC)),
)
