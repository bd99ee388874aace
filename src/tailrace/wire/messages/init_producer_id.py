"""InitProducerId, versions 0 to 6, flexible from 2: an identity for an idempotent producer.

Odd: from version 3 on a producer may send its current id and epoch to request the next epoch. Version 6 adds two-phase
commit (KIP-939), which Kafka itself does not consider stable. A null transactional id requests idempotence only.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message):
    """Requests a producer id and epoch."""

    API_KEY = ApiKey.INIT_PRODUCER_ID
    MIN_VERSION = 0
    MAX_VERSION = 6
    FLEXIBLE_FROM = 2

    transactional_id: str | None = string(nullable_from=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


class InitProducerIdResponse(Message):
    """The identity for record batches."""

    API_KEY = ApiKey.INIT_PRODUCER_ID
    MIN_VERSION = 0
    MAX_VERSION = 6
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = int16(since=6, default=-1)
