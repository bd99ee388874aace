"""Transaction records come back as they were, and are described as Kafka's coordinator describes them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import WireError
from tailrace.model import TopicPartition
from tailrace.transactions.records import (
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tailrace.transactions.states import State, Transaction
from tailrace.wire.codec import Message
from tests.unit.wire.kafka_schemas import TRANSACTION_COORDINATOR, compare_message, needs, schemas

IDS = st.integers(-1, 2**63 - 1)
TRANSACTIONS = st.builds(
    Transaction,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 32767),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([state for state in State if state is not State.EMPTY]),
    partitions=st.dictionaries(
        st.builds(TopicPartition, st.text("abc", min_size=1, max_size=3), st.integers(0, 3)), st.none()
    ),
    start_ms=IDS,
    update_ms=IDS,
    previous_producer_id=IDS,
    next_producer_id=IDS,
    client_version=st.integers(0, 2),
)


@needs(TRANSACTION_COORDINATOR)
@pytest.mark.parametrize("message", [TransactionLogKey, TransactionLogValue])
def test_a_record_is_described_as_kafka_describes_it(message: type[Message]) -> None:
    theirs = schemas(TRANSACTION_COORDINATOR)[message.__name__]
    assert theirs["apiKey"] == message.API_KEY
    compare_message(message, theirs)


@settings(max_examples=200, derandomize=True, database=None)
@given(TRANSACTIONS)
def test_a_transaction_is_the_same_after_it_was_written_and_read(transaction: Transaction) -> None:
    assert decode_value(encode_value(transaction)) == transaction


@given(st.text(max_size=50))
def test_a_key_is_the_transactional_id(transactional_id: str) -> None:
    assert decode_key(encode_key(transactional_id)) == transactional_id


def test_an_identity_without_a_transaction_has_no_list_of_partitions() -> None:
    value = encode_value(Transaction(7, 3, 60_000, update_ms=5))
    version, body = struct.unpack_from(">h", value)[0], value[2:]
    assert version == 1
    assert TransactionLogValue.decode(1, body).transaction_partitions is None


def test_a_value_that_an_older_kafka_wrote_is_read() -> None:
    old = TransactionLogValue(
        producer_id=7, producer_epoch=3, transaction_timeout_ms=9, transaction_status=State.COMPLETE_COMMIT
    )
    transaction = decode_value(struct.pack(">h", 0) + old.encode(0))
    assert (transaction.identity, transaction.state) == ((7, 3), State.COMPLETE_COMMIT)
    assert transaction.next_identity == (7, 3)


@pytest.mark.parametrize(
    "data", [b"", b"\0", struct.pack(">h", 2), struct.pack(">h", 1) + b"\0" * 5, struct.pack(">h", -1)]
)
def test_bytes_that_are_no_value_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_value(data)


def test_a_state_that_nobody_knows_is_refused() -> None:
    value: Any = TransactionLogValue(transaction_status=9)
    with pytest.raises(WireError, match="unknown state of a transaction: 9"):
        decode_value(struct.pack(">h", 1) + value.encode(1))


def test_a_key_of_another_type_is_left_alone() -> None:
    assert decode_key(struct.pack(">h", 1) + b"whatever") is None
