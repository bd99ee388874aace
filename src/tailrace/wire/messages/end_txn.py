"""EndTxn, versions 0 to 5, flexible from 3: commits or aborts a transaction.

Odd: the version tells which protocol the producer speaks. From 5 on (KIP-890) its epoch is incremented at the end of
every transaction, and the response has the producer id and epoch for the next one.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message):
    """Commits or aborts a transaction."""

    API_KEY = ApiKey.END_TXN
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 3

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message):
    """The producer's identity for its next transaction, or the error."""

    API_KEY = ApiKey.END_TXN
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 3

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1)
    producer_epoch: int = int16(since=5, default=-1)
