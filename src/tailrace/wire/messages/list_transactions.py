"""ListTransactions, versions 0 to 2, flexible: the transactional ids that a broker coordinates.

Odd: version 1 filters by duration, 2 by a regular expression. An empty filter matches all. A broker knows only its own
transactional ids, so a client asks every broker.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, int64, string


class ListTransactionsRequest(Message):
    """Requests the transactional ids of a broker."""

    API_KEY = ApiKey.LIST_TRANSACTIONS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    state_filters: list[str] = array(Kind.STRING)
    producer_id_filters: list[int] = array(Kind.INT64)
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable_from=2, default=None)


class TransactionState(Struct):
    """One transactional id."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message):
    """The transactional ids of this broker."""

    API_KEY = ApiKey.LIST_TRANSACTIONS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(Kind.STRING)
    transaction_states: list[TransactionState] = array(TransactionState)
