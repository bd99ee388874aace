"""The records of the internal topic `__transaction_state`, byte for byte as Kafka 4.3 writes and reads them.

A key is a two-byte type and a transactional id, a value a two-byte version and a transaction. Bytes that are not such a
record are a `WireError`. A key of an unknown type decodes to None. This module must not know which transitions are
legal.
"""

from __future__ import annotations

import struct as packing

from tailrace.errors import WireError
from tailrace.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from tailrace.runtime.disk import Buffer
from tailrace.transactions.states import State, Transaction
from tailrace.wire.codec import NEVER, Kind, Message, Struct, array, int8, int16, int32, int64, string

_PREFIX = packing.Struct(">h")
_KEY_TYPE = 0
#: The version in which values are written: the first one with fields for the next producer id.
_WRITTEN_VERSION = 1


class TransactionLogKey(Message):
    """A transactional id."""

    API_KEY = _KEY_TYPE
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    transactional_id: str = string()


class PartitionsSchema(Struct):
    """The partitions of one topic in a transaction."""

    topic: str = string()
    partition_ids: list[int] = array(Kind.INT32)


class TransactionLogValue(Message):
    """A transaction, or the identity of a producer that has none."""

    API_KEY = _KEY_TYPE
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 1

    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, default=NO_PRODUCER_ID, tag=0)
    next_producer_id: int = int64(since=1, default=NO_PRODUCER_ID, tag=1)
    producer_epoch: int = int16()
    #: Only for two-phase commit (KIP-939), which Kafka has not released.
    next_producer_epoch: int = int16(since=1, default=NO_PRODUCER_EPOCH, tag=3)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable_from=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2)


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    return _PREFIX.pack(_KEY_TYPE) + TransactionLogKey(transactional_id=transactional_id).encode(0)


def encode_value(transaction: Transaction) -> bytes:
    """Encode a transaction in the version that Kafka 4.3 writes."""
    topics: dict[str, list[int]] = {}
    for topic, number in transaction.partitions:
        topics.setdefault(topic, []).append(number)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        # Kafka has no list for an identity without a transaction.
        transaction_partitions=None
        if transaction.state is State.EMPTY
        else [PartitionsSchema(topic=topic, partition_ids=numbers) for topic, numbers in topics.items()],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return _PREFIX.pack(_WRITTEN_VERSION) + value.encode(_WRITTEN_VERSION)


def decode_key(data: Buffer) -> str | None:
    """Decode a transactional id from a key; None if the type of the key is unknown here."""
    key_type, body = _split(data)
    return TransactionLogKey.decode(0, body).transactional_id if key_type == _KEY_TYPE else None


def decode_value(data: Buffer) -> Transaction:
    """Decode a transaction from a value in any known version."""
    version, body = _split(data)
    if not TransactionLogValue.MIN_VERSION <= version <= TransactionLogValue.MAX_VERSION:
        raise WireError(
            f"the record of a transaction has version {version}, expected {TransactionLogValue.MIN_VERSION} to "
            f"{TransactionLogValue.MAX_VERSION}; a newer release may have written it"
        )
    value = TransactionLogValue.decode(version, body)
    try:
        state = State(value.transaction_status)
    except ValueError:
        raise WireError(f"unknown state of a transaction: {value.transaction_status}") from None
    return Transaction(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions={
            TopicPartition(topic.topic, number): None
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        },
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    ).remembering_its_last_epoch()


def _split(data: Buffer) -> tuple[int, memoryview]:
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        raise WireError("the record of a transaction ends before its type or version")
    (number,) = _PREFIX.unpack_from(view)
    return number, view[_PREFIX.size :]
