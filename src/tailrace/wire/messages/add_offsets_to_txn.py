"""AddOffsetsToTxn, versions 0 to 4, flexible from 3: adds the offsets of a group to a transaction.

Producers send it before TxnOffsetCommit. From TxnOffsetCommit 5 on, the group's coordinator does it for them.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, int16, int32, int64, string


class AddOffsetsToTxnRequest(Message):
    """Adds the offsets of a group to a transaction."""

    API_KEY = ApiKey.ADD_OFFSETS_TO_TXN
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 3

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message):
    """The error, if any."""

    API_KEY = ApiKey.ADD_OFFSETS_TO_TXN
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 3

    throttle_time_ms: int = int32()
    error_code: int = int16()
