"""Subscriptions and assignments of classic members are read and written as kafka-python, aiokafka and kio do it."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from tailrace.errors import WireError
from tailrace.groups.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.unit.wire.kafka_schemas import CLIENTS, compare_message, needs, schemas
from tests.unit.wire.strategies import structs, version_id

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer import metadata as kafka_python

SOME = settings(max_examples=40, derandomize=True, database=None)
VERSIONS = [0, 1, 2, 3]


def kio_codec(name: str, version: int) -> tuple[Any, Any]:
    """How kio reads and writes a version."""
    module = __import__(f"kio.schema.{name}.v{version}.data", fromlist=["data"])
    entity = getattr(module, "".join(word.capitalize() for word in name.split("_")))
    return entity_reader(entity), entity_writer(entity)


def pairs(partitions: Any) -> list[tuple[str, list[int]]]:
    """Topics with partitions, whatever class holds them."""
    return [(entry.topic, list(entry.partitions)) for entry in partitions]


@needs(CLIENTS)
@pytest.mark.parametrize("message", [ConsumerProtocolSubscription, ConsumerProtocolAssignment], ids=version_id)
def test_both_are_described_as_kafka_describes_them(message: Any) -> None:
    compare_message(message, schemas(CLIENTS)[message.__name__], {"TopicPartition": "TopicPartitions"})


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_reads_and_writes_the_same_subscription(version: int) -> None:
    @SOME
    @given(structs(ConsumerProtocolSubscription, version))
    def holds(ours: ConsumerProtocolSubscription) -> None:
        data = encode_subscription(ours, version)
        theirs = kafka_python.ConsumerProtocolSubscription.decode(data)
        assert (theirs.topics, theirs.user_data) == (ours.topics, ours.user_data)
        if version >= 1:
            assert pairs(theirs.owned_partitions) == pairs(ours.owned_partitions)
        if version >= 2:
            assert theirs.generation_id == ours.generation_id
        if version >= 3:
            assert theirs.rack_id == ours.rack_id
        assert theirs.encode() == data
        assert decode_subscription(data) == ours

    holds()


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_reads_and_writes_the_same_assignment(version: int) -> None:
    @SOME
    @given(structs(ConsumerProtocolAssignment, version))
    def holds(ours: ConsumerProtocolAssignment) -> None:
        data = encode_assignment(ours, version)
        theirs = kafka_python.ConsumerProtocolAssignment.decode(data)
        assert pairs(theirs.assigned_partitions) == pairs(ours.assigned_partitions)
        assert theirs.user_data == ours.user_data
        assert theirs.encode() == data
        assert decode_assignment(data) == ours

    holds()


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_and_writes_the_same_bytes(version: int) -> None:
    @SOME
    @given(structs(ConsumerProtocolSubscription, version), structs(ConsumerProtocolAssignment, version))
    def holds(subscription: ConsumerProtocolSubscription, assignment: ConsumerProtocolAssignment) -> None:
        for name, data in (
            ("consumer_protocol_subscription", encode_subscription(subscription, version)),
            ("consumer_protocol_assignment", encode_assignment(assignment, version)),
        ):
            read, write = kio_codec(name, version)
            theirs, size = read(data, 2)
            assert 2 + size == len(data)
            again = io.BytesIO()
            write(again, theirs)
            assert data[:2] + again.getvalue() == data

    holds()


@SOME
@given(st.lists(st.text(max_size=20), max_size=4), st.none() | st.binary(max_size=20))
def test_aiokafka_reads_and_writes_the_same_subscription(topics: list[str], user_data: bytes | None) -> None:
    theirs = ConsumerProtocolMemberMetadata(0, topics, user_data)
    ours = ConsumerProtocolSubscription(topics=topics, user_data=user_data)
    assert encode_subscription(ours, 0) == theirs.encode()
    assert decode_subscription(theirs.encode()) == ours


@SOME
@given(
    st.lists(st.tuples(st.text(max_size=20), st.lists(st.integers(0, 2**31 - 1), max_size=4)), max_size=4),
    st.none() | st.binary(max_size=20),
)
def test_aiokafka_reads_and_writes_the_same_assignment(
    assigned: list[tuple[str, list[int]]], user_data: bytes | None
) -> None:
    theirs = ConsumerProtocolMemberAssignment(0, assigned, user_data)
    ours = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic=topic, partitions=partitions) for topic, partitions in assigned],
        user_data=user_data,
    )
    assert encode_assignment(ours, 0) == theirs.encode()
    assert decode_assignment(theirs.encode()) == ours


SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["orders", "bills"],
    user_data=b"sticky",
    owned_partitions=[TopicPartitions(topic="orders", partitions=[1, 2])],
    generation_id=4,
    rack_id="r1",
)
ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=[TopicPartitions(topic="orders", partitions=[0, 5])], user_data=b"u"
)


def test_the_newest_version_is_written() -> None:
    assert encode_subscription(SUBSCRIPTION)[:2] == b"\x00\x03"
    assert decode_subscription(encode_subscription(SUBSCRIPTION)) == SUBSCRIPTION
    assert encode_assignment(ASSIGNMENT)[:2] == b"\x00\x03"
    assert decode_assignment(encode_assignment(ASSIGNMENT)) == ASSIGNMENT
    assert kafka_python.ConsumerProtocolType == CONSUMER_PROTOCOL_TYPE


@pytest.mark.parametrize("version", [b"\x00\x04", b"\x7f\xff"])
def test_a_newer_version_is_read_as_the_newest_one_with_more_at_its_end(version: bytes) -> None:
    assert decode_subscription(version + encode_subscription(SUBSCRIPTION)[2:] + b"more") == SUBSCRIPTION
    assert decode_assignment(version + encode_assignment(ASSIGNMENT)[2:] + b"more") == ASSIGNMENT


def test_a_version_below_zero_is_refused() -> None:
    with pytest.raises(WireError, match="Unsupported subscription version: -1"):
        decode_subscription(b"\xff\xff" + encode_subscription(SUBSCRIPTION)[2:])
    with pytest.raises(WireError, match="Unsupported assignment version: -32768"):
        decode_assignment(b"\x80\x00" + encode_assignment(ASSIGNMENT)[2:])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_ends_too_early_is_a_wire_error(version: int) -> None:
    subscription, assignment = encode_subscription(SUBSCRIPTION, version), encode_assignment(ASSIGNMENT, version)
    for size in range(len(subscription)):
        with pytest.raises(WireError):
            decode_subscription(subscription[:size])
    for size in range(len(assignment)):
        with pytest.raises(WireError):
            decode_assignment(assignment[:size])


@SOME
@given(st.integers(-2, 5), st.binary(max_size=80))
def test_random_bytes_give_a_value_or_a_wire_error(version: int, body: bytes) -> None:
    data = version.to_bytes(2, "big", signed=True) + body
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)  # type: ignore[operator]
        except WireError:
            pass
