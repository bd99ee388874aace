"""DescribeTransactions, version 0, flexible: the transactions of given transactional ids."""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, int64, string


class DescribeTransactionsRequest(Message):
    """Requests the transactions of some transactional ids."""

    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    transactional_ids: list[str] = array(Kind.STRING)


class TopicData(Struct):
    """The partitions of one topic that are in a transaction."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


class TransactionState(Struct):
    """The transaction of one transactional id, or the error."""

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message):
    """The transactions."""

    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)
