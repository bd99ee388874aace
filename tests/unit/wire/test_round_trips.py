"""Every message comes back as it was, in every version; defaults are those of the protocol."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import WireError
from tailrace.model import ZERO_UUID
from tailrace.runtime.disk import FileRange
from tailrace.wire.codec import Kind, Message, Struct, array, byte_string, int16, int32, optional_struct, string
from tailrace.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.wire.strategies import all_versions, structs, version_id

FEW = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(("message", "version"), list(all_versions()), ids=version_id)
def test_a_message_decodes_to_what_was_encoded(message: type[Message], version: int) -> None:
    @FEW
    @given(structs(message, version))
    def holds(value: Any) -> None:
        body = value.encode(version)
        assert message.decode(version, body) == value
        assert message.decode(version, memoryview(bytes(body) + b"trailing")) == value
        assert b"".join(value.encode_parts(version)) == body

    holds()


class Inner(Struct):
    number: int = int16(since=1)
    name: str = string()


class Sample(Message):
    """What hardly any API has: nullable structs, also tagged, arrays of longs, null by default, tags out of order."""

    API_KEY = 999
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    inner: Inner | None = optional_struct(Inner)
    payload: object = byte_string(nullable_from=1)
    shorts: list[int] = array(Kind.INT16)
    longs: list[int] = array(Kind.INT64, since=1)
    ids: list[Any] = array(Kind.UUID)
    names: list[str] | None = array(Kind.STRING, since=1, nullable_from=1, null_by_default=True)
    last: int = int32()
    second: int = int16(since=2, tag=1)
    first: int = int16(since=2, tag=0)
    third: Inner | None = optional_struct(Inner, since=2, tag=2, nullable_from=2)
    fourth: list[str] | None = array(Kind.STRING, since=2, tag=3, nullable_from=2, null_by_default=True)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_kinds_that_hardly_any_api_uses_round_trip(version: int) -> None:
    @settings(FEW, max_examples=100)
    @given(structs(Sample, version))
    def holds(value: Sample) -> None:
        assert Sample.decode(version, value.encode(version)) == value

    holds()


def test_a_null_struct_is_one_byte_and_a_present_one_is_marked() -> None:
    assert Sample().encode(0)[:1] == b"\xff"
    assert Sample(inner=Inner(name="a")).encode(0)[:4] == b"\x01\x00\x01a"


def test_tagged_fields_are_written_in_the_order_of_their_tags() -> None:
    assert Sample(first=1, second=2).encode(2).endswith(b"\x02" + b"\x00\x02\x00\x01" + b"\x01\x02\x00\x02")


def test_a_tagged_struct_that_may_be_null_is_sent_unless_it_is_null() -> None:
    plain = Sample().encode(2)
    assert plain.endswith(b"\x00")
    present = plain[:-1] + b"\x01" + b"\x02\x05\x01" + b"\x00\x00\x01\x00"
    assert Sample(third=Inner()).encode(2) == present
    assert Sample.decode(2, present).third == Inner()
    assert Sample.decode(2, plain).third is None
    assert Sample.decode(2, plain[:-1] + b"\x01" + b"\x02\x01\x00").third is None
    with pytest.raises(WireError, match="neither null nor present"):
        Sample.decode(2, plain[:-1] + b"\x01" + b"\x02\x05\xff" + b"\x00\x00\x01\x00")


def test_an_array_that_is_null_by_default_is_sent_as_null_and_tagged_not_at_all() -> None:
    assert Sample().names is None
    assert Sample().encode(1)[-8:] == b"\xff\xff\xff\xff" + bytes(4)
    assert Sample(names=[]).encode(1)[-8:] == bytes(8)
    assert Sample(fourth=[]).encode(2) == Sample().encode(2)[:-1] + b"\x01" + b"\x03\x01\x01"
    assert Sample.decode(2, Sample(fourth=[]).encode(2)).fourth == []


def test_fields_left_out_of_a_constructor_have_the_protocols_defaults() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch) == (-1, 2**31 - 1, -1)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (-1, -1)
    assert MetadataRequest().allow_auto_topic_creation is True
    topic = MetadataResponseTopic()
    assert (topic.name, topic.topic_id, topic.topic_authorized_operations) == ("", ZERO_UUID, -(2**31))


def test_lists_are_not_shared_between_messages() -> None:
    first, second = MetadataResponse(), MetadataResponse()
    first.topics.append(MetadataResponseTopic())
    assert second.topics == []


def test_fields_that_a_version_lacks_are_left_out_and_come_back_as_defaults() -> None:
    request = FetchRequest(rack_id="a", session_id=5)
    assert FetchRequest.decode(4, request.encode(4)) == FetchRequest()
    assert FetchRequest.decode(7, request.encode(7)) == FetchRequest(session_id=5)


def test_records_are_decoded_as_views_of_the_body() -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=b"abc")]),
        ]
    )
    body = request.encode(9)
    records = ProduceRequest.decode(9, body).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is body
    records[0:1] = b"X"
    assert b"Xbc" in bytes(body)


class EmptyFile:
    """A file that is only ever named, never read: the codec does no I/O."""

    path = "unread"
    size = 5000


def test_parts_hold_record_data_as_they_are_between_the_encoded_fields() -> None:
    in_memory = b"m" * 300
    in_file = FileRange(EmptyFile(), 10, 4000)  # type: ignore[arg-type]
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                partitions=[
                    PartitionData(partition_index=0, records=in_memory),
                    PartitionData(partition_index=1, records=None),
                    PartitionData(partition_index=2, records=b""),
                    PartitionData(partition_index=3, records=in_file),
                ]
            )
        ]
    )
    for version in (4, 12, 18):
        parts = response.encode_parts(version)
        assert parts[1] is in_memory
        assert parts[3] is in_file
        assert len(parts) == (5 if version >= 12 else 4)
        sent = b"".join(b"f" * 4000 if part is in_file else part for part in parts)  # type: ignore[misc]
        response.responses[0].partitions[3].records = b"f" * 4000
        assert FetchResponse.decode(version, sent) == response
        assert response.encode(version) == sent
        response.responses[0].partitions[3].records = in_file


@given(st.integers(5, 100))
@settings(max_examples=5, derandomize=True)
def test_a_version_that_a_message_does_not_have_is_a_value_error(version: int) -> None:
    with pytest.raises(ValueError, match="versions 0 to 2"):
        Sample().encode(version)
    with pytest.raises(ValueError, match="versions 0 to 2"):
        Sample.decode(version, b"")


def test_a_message_prints_what_differs_from_its_defaults() -> None:
    assert repr(FetchRequest(min_bytes=1, rack_id="a")) == "FetchRequest(min_bytes=1, rack_id='a')"


@pytest.mark.parametrize(
    ("message", "version", "complaint"),
    [
        (MetadataRequest(topics=None), 0, "topics cannot be null"),
        (MetadataResponse(topics=[MetadataResponseTopic(name=None)]), 11, r"topics: \[0\]: name cannot be null"),
        (FetchRequest(min_bytes=2**31), 4, "min_bytes: 2147483648 is not an int32"),
        (FetchRequest(rack_id="x" * 40_000), 11, "rack_id: is longer than a string can be"),
        (FetchRequest(rack_id=None), 11, "rack_id cannot be null"),  # type: ignore[arg-type]
        (FetchRequest(topics=5), 11, "topics: 5 is not a list"),  # type: ignore[arg-type]
        (FetchRequest(topics=[None]), 11, r"topics: \[0\]: cannot be null"),  # type: ignore[list-item]
    ],
)
def test_what_cannot_be_encoded_is_a_value_error_that_names_the_field(
    message: Message, version: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        message.encode(version)
