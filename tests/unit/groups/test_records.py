"""Group records come back as they were, in every version, and are described as Kafka's coordinator describes them."""

from __future__ import annotations

import random
import struct
from copy import deepcopy
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import WireError
from tailrace.groups.records import (
    VALUE_OF_KEY,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    Key,
    OffsetCommitKey,
    OffsetCommitValue,
    RecordType,
    decode_key,
    decode_value,
    encode_committed,
    encode_key,
    encode_value,
)
from tailrace.wire.codec import Message
from tests.unit.wire.kafka_schemas import GROUP_COORDINATOR, compare_message, needs, schemas, snake_case
from tests.unit.wire.strategies import sample, structs, version_id

SOME = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

KEYS = list(VALUE_OF_KEY)
VALUES = [
    (key, version) for key, value in VALUE_OF_KEY.items() for version in range(value.MIN_VERSION, value.MAX_VERSION + 1)
]
#: Our names for structs that Kafka calls less plainly.
RENAMED = {"MemberMetadata": "GroupMetadataMember", "TopicPartition": "TopicPartitions"}
#: The value whose partitions carry epochs: only there does Kafka use the same name for another struct.
OWNED = {"TopicPartitions": "OwnedTopicPartitions"}


def with_version(value: Message, version: int) -> bytes:
    """A value in any version, as it stands in a record."""
    return struct.pack(">h", version) + value.encode(version)


@needs(GROUP_COORDINATOR)
@pytest.mark.parametrize("message", [*KEYS, *VALUE_OF_KEY.values()], ids=version_id)
def test_a_record_is_described_as_kafka_describes_it(message: type[Message]) -> None:
    theirs = deepcopy(schemas(GROUP_COORDINATOR)[message.__name__])
    if message is ConsumerGroupCurrentMemberAssignmentValue:
        # It says null without quotes; Kafka's generator takes that for no default, which is an empty array.
        (owned_partitions,) = theirs["commonStructs"]
        assert owned_partitions["fields"][-1].pop("default") is None
    assert theirs["apiKey"] == message.API_KEY
    owned = OWNED if message is ConsumerGroupCurrentMemberAssignmentValue else {}
    compare_message(message, theirs, {**RENAMED, **owned})


@needs(GROUP_COORDINATOR)
def test_every_type_has_kafkas_number_and_name_and_a_legacy_key_has_the_same_fields() -> None:
    found = schemas(GROUP_COORDINATOR)
    numbers = {snake_case(name).upper(): schema["apiKey"] for name, schema in found.items() if name.endswith("Key")}
    assert {f"{kind.name}_KEY": int(kind) for kind in RecordType}.items() <= numbers.items()
    assert found["LegacyOffsetCommitKey"]["fields"] == found["OffsetCommitKey"]["fields"]
    legacy, newer = (found[name]["fields"] for name in ("LegacyOffsetCommitValue", "OffsetCommitValue"))
    in_version_0 = [field["name"] for field in newer if field["versions"] == "0+"]
    assert [field["name"] for field in legacy] == in_version_0


@pytest.mark.parametrize("key_type", KEYS, ids=version_id)
def test_a_key_decodes_to_what_was_encoded(key_type: type[Key]) -> None:
    @SOME
    @given(structs(key_type, 0))
    def holds(key: Any) -> None:
        data = encode_key(key)
        assert data[:2] == struct.pack(">h", key_type.API_KEY)
        assert decode_key(data) == key
        assert decode_key(bytearray(data)) == key

    holds()


@pytest.mark.parametrize(("key_type", "version"), VALUES, ids=version_id)
def test_a_value_of_any_version_decodes_to_what_was_encoded(key_type: type[Key], version: int) -> None:
    @SOME
    @given(structs(VALUE_OF_KEY[key_type], version))
    def holds(value: Any) -> None:
        assert decode_value(key_type(), with_version(value, version)) == value

    holds()


@pytest.mark.parametrize("key_type", KEYS, ids=version_id)
def test_a_value_is_written_in_a_version_that_keeps_every_field(key_type: type[Key]) -> None:
    written = {OffsetCommitKey: 4, GroupMetadataKey: 3}.get(key_type, 0)

    @SOME
    @given(structs(VALUE_OF_KEY[key_type], written))
    def holds(value: Any) -> None:
        data = encode_value(value)
        assert data == with_version(value, written)
        assert decode_value(key_type(), data) == value

    holds()


def test_an_offset_with_an_expiry_is_written_in_the_only_version_that_has_one() -> None:
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=100, expire_timestamp=200)
    data = encode_value(value)
    assert data == struct.pack(">hqh1sqq", 1, 7, 1, b"m", 100, 200)
    assert decode_value(OffsetCommitKey(), data) == value


def test_an_offset_record_is_the_known_bytes() -> None:
    key = OffsetCommitKey(group="g", topic="orders", partition=3)
    assert encode_key(key) == bytes.fromhex("0001 0001 67 0006 6f7264657273 00000003")
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="hi", commit_timestamp=9)
    assert encode_value(value) == bytes.fromhex("0004 0000000000000005 00000002 03 6869 0000000000000009 00")
    value.topic_id = UUID(int=1)
    tagged = "01 00 10 00000000000000000000000000000001"
    assert encode_value(value) == bytes.fromhex("0004 0000000000000005 00000002 03 6869 0000000000000009" + tagged)


def test_a_classic_group_record_is_the_known_bytes() -> None:
    assert encode_key(GroupMetadataKey(group="g")) == bytes.fromhex("0002 0001 67")
    member = GroupMetadataMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=2,
        session_timeout=1,
        subscription=b"s",
        assignment=b"",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="m",
        current_state_timestamp=8,
        members=[member],
    )
    assert encode_value(value) == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000001 0005 72616e6765 0001 6d 0000000000000008 00000001"
        "0001 6d ffff 0001 63 0002 2f68 00000002 00000001 00000001 73 00000000"
    )
    empty = GroupMetadataValue(protocol_type="consumer", protocol=None, leader=None, current_state_timestamp=8)
    assert encode_value(empty) == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000000 ffff ffff 0000000000000008 00000000"
    )


def test_a_classic_member_of_a_newer_group_is_there_or_not_whatever_it_holds() -> None:
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    for classic in (None, ClassicMemberMetadata(), ClassicMemberMetadata(session_timeout_ms=5)):
        value = ConsumerGroupMemberMetadataValue(client_id="c", classic_member_metadata=classic)
        assert decode_value(key, encode_value(value)).classic_member_metadata == classic


def test_a_legacy_key_is_an_offset_key() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=1)
    legacy = b"\x00\x00" + encode_key(key)[2:]
    assert decode_key(legacy) == key
    value = OffsetCommitValue(offset=4, metadata="m", commit_timestamp=3)
    assert decode_value(key, struct.pack(">hqh1sq", 0, 4, 1, b"m", 3)) == value


@pytest.mark.parametrize("number", [9, 11, 15, 17, 20, 99, -1, 0x7FFF])
def test_a_key_of_another_type_is_not_known_and_no_error(number: int) -> None:
    assert decode_key(struct.pack(">h", number) + b"anything") is None


@pytest.mark.parametrize("version", [-1, 5, 0x7FFF])
def test_a_value_of_a_version_that_is_not_known_is_refused_with_a_reason(version: int) -> None:
    data = struct.pack(">h", version) + bytes(40)
    with pytest.raises(WireError, match=f"OffsetCommitValue has version {version}, expected 0 to 4; a new"):
        decode_value(OffsetCommitKey(), data)


def test_tagged_fields_of_later_releases_are_skipped() -> None:
    value = ConsumerGroupMetadataValue(epoch=3, metadata_hash=9)
    data = encode_value(value)
    assert data == bytes.fromhex("0000 00000003 01 00 08 0000000000000009")
    later = data[:6] + b"\x02" + data[7:] + b"\x05\x03abc"
    assert decode_value(ConsumerGroupMetadataKey(), later) == value


def test_opaque_bytes_are_views_of_the_record() -> None:
    data = encode_value(GroupMetadataValue(members=[GroupMetadataMember(subscription=b"sub")]))
    (member,) = decode_value(GroupMetadataKey(), data).members
    assert isinstance(member.subscription, memoryview)
    assert member.subscription.obj is data


def every_record() -> list[tuple[type[Key], bytes, bytes]]:
    """One record of each kind and version, with something in every field."""
    return [
        (
            key_type,
            encode_key(sample(key_type, 0)),
            with_version(sample(VALUE_OF_KEY[key_type], version), version),
        )
        for key_type, version in VALUES
    ]


@pytest.mark.parametrize(("key_type", "key", "value"), every_record())
def test_a_record_that_ends_anywhere_too_early_is_a_wire_error(key_type: type[Key], key: bytes, value: bytes) -> None:
    for size in range(len(key)):
        with pytest.raises(WireError):
            decode_key(key[:size])
    for size in range(len(value)):
        with pytest.raises(WireError):
            decode_value(key_type(), value[:size])


@SOME
@given(st.sampled_from(KEYS), st.integers(-2, 5), st.binary(max_size=100))
def test_random_bytes_give_a_record_or_a_wire_error(key_type: type[Key], number: int, body: bytes) -> None:
    data = struct.pack(">h", number) + body
    for decode in (lambda: decode_key(data), lambda: decode_value(key_type(), data)):
        try:
            decode()
        except WireError:
            pass


@pytest.mark.parametrize(("key_type", "key", "value"), every_record())
def test_damaged_records_give_a_record_or_a_wire_error(key_type: type[Key], key: bytes, value: bytes) -> None:
    picks = random.Random(f"{key_type.__name__} {value[1]}")
    for _ in range(300):
        damaged = []
        for data in (key, value):
            copy = bytearray(data)
            for _ in range(picks.randint(1, 3)):
                place = picks.randrange(2, len(copy) + 1)
                if place < len(copy) and picks.random() < 0.5:
                    copy[place] ^= 1 << picks.randrange(8)
                else:
                    copy[place : place + 4] = picks.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"", bytes(9)])
            damaged.append(bytes(copy))
        try:
            decode_key(damaged[0])
        except WireError:
            pass
        try:
            decode_value(key_type(), damaged[1])
        except WireError:
            pass


def test_every_key_has_its_value() -> None:
    assert {(key.API_KEY, value.API_KEY) for key, value in VALUE_OF_KEY.items()} == {
        (kind, kind) for kind in RecordType if kind is not RecordType.LEGACY_OFFSET_COMMIT
    }


def test_a_value_that_cannot_be_encoded_is_a_value_error_that_names_the_field() -> None:
    value = OffsetCommitValue(offset=2**63)
    with pytest.raises(ValueError, match="offset: 9223372036854775808 is not an int64"):
        encode_value(value)


@SOME
@given(
    st.text(max_size=300),
    st.text(max_size=249),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "x", "é" * 63, "x" * 126, "x" * 127, "x" * 16_383, "x" * 30_000]),
    st.integers(-1, 2**63 - 1),
    st.none() | st.uuids(),
)
def test_a_commit_written_by_hand_has_the_bytes_of_its_description(
    group: str,
    topic: str,
    partition: int,
    offset: int,
    leader_epoch: int,
    metadata: str,
    timestamp: int,
    topic_id: UUID | None,
) -> None:
    value = OffsetCommitValue(offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_timestamp=timestamp)
    if topic_id is not None:
        value.topic_id = topic_id
    assert encode_committed(group, topic, partition, offset, leader_epoch, metadata, timestamp, topic_id) == (
        encode_key(OffsetCommitKey(group=group, topic=topic, partition=partition)),
        encode_value(value),
    )
