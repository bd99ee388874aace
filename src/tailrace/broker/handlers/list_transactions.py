"""ListTransactions 0 to 2: the transactional ids that this broker coordinates, filtered.

Odd: the filter by duration finds only transactions that have begun and not ended, as people who look for those that
hang expect. An unknown state in the filter matches nothing, and is named in the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.topic_patterns import compile_pattern
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.transactions.shard import Listed
from tailrace.transactions.states import State
from tailrace.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

_STATES = {state.shown: state for state in State}


async def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    if services.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        is_wanted = _filter(request, services.clock.wall_ms())
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    found = []
    count = 0
    for shard in list(services.transactions):
        for listed in shard.listed():
            count += 1
            if count % ITEMS_PER_SLICE == 0:
                await asyncio.sleep(0)
            if is_wanted(listed) and access.is_allowed(
                services, context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, listed.transactional_id
            ):
                found.append(
                    TransactionState(
                        transactional_id=listed.transactional_id,
                        producer_id=listed.transaction.producer_id,
                        transaction_state=listed.transaction.state.shown,
                    )
                )
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
        transaction_states=found,
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Listed], bool]:
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producer_ids = set(request.producer_id_filters)
    pattern = compile_pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None

    def is_wanted(listed: Listed) -> bool:
        transaction = listed.transaction
        if request.state_filters and transaction.state not in states:
            return False
        if producer_ids and transaction.producer_id not in producer_ids:
            return False
        if request.duration_filter >= 0 and (
            transaction.may_expire or now_ms - transaction.start_ms <= request.duration_filter
        ):
            return False
        return pattern is None or pattern.fullmatch(listed.transactional_id) is not None

    return is_wanted


API = Api(
    ListTransactionsRequest,
    0,
    2,
    handle,
    "List transactional ids, by state, producer, duration and name.",
    needs=(each(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
)
