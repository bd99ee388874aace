"""Bytes that are not the protocol give a value or a WireError, at a cost proportional to their size."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import WireError
from tailrace.wire.codec import Message
from tailrace.wire.frames import decode_request_header, decode_response_header
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.create_topics import CreateTopicsRequest
from tailrace.wire.messages.fetch import FetchRequest
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.wire.primitives import MOST_ELEMENTS
from tailrace.wire.produce_frames import decode_produce
from tests.unit.wire.strategies import all_versions, sample, structs, version_id

SOME = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def decodes_or_refuses(decode: Callable[[], object]) -> bool:
    """Whether it decoded; any exception other than WireError goes through and fails the test."""
    try:
        decode()
    except WireError:
        return False
    return True


@pytest.mark.parametrize(("message", "version"), list(all_versions()), ids=version_id)
def test_random_bytes_give_a_value_or_a_wire_error(message: type[Message], version: int) -> None:
    @SOME
    @given(st.binary(max_size=200))
    def holds(body: bytes) -> None:
        decodes_or_refuses(lambda: message.decode(version, body))

    holds()


@pytest.mark.parametrize(("message", "version"), list(all_versions()), ids=version_id)
def test_mutated_bodies_give_a_value_or_a_wire_error(message: type[Message], version: int) -> None:
    picks = random.Random(f"{message.__name__} {version}")

    @settings(SOME, max_examples=3)
    @given(structs(message, version))
    def holds(value: Any) -> None:
        body = bytes(value.encode(version))[:2000]
        for _ in range(60):
            mutated = bytearray(body)
            for _ in range(picks.randint(1, 3)):
                place = picks.randrange(len(mutated) + 1)
                change = picks.choice(["flip", "insert", "cut", "extreme"])
                if change == "insert" or place == len(mutated):
                    mutated[place:place] = picks.randbytes(picks.randint(1, 4))
                elif change == "flip":
                    mutated[place] ^= 1 << picks.randrange(8)
                elif change == "cut":
                    del mutated[place : place + picks.randint(1, 8)]
                else:
                    mutated[place : place + 4] = picks.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80" + bytes(3)])
            decodes_or_refuses(lambda body=mutated: message.decode(version, body))  # type: ignore[misc]

    holds()


@pytest.mark.parametrize(("message", "version"), list(all_versions()), ids=version_id)
def test_a_body_that_ends_anywhere_too_early_is_a_wire_error(message: type[Message], version: int) -> None:
    body = bytes(sample(message, version).encode(version))
    assert message.decode(version, body) == sample(message, version)
    for size in range(len(body)):
        with pytest.raises(WireError):
            message.decode(version, body[:size])


UNBOUNDED = [
    # Each claims far more than it has: an array, a string, a nested array, tagged fields, a tag's size.
    (MetadataRequest, 0, struct.pack(">i", 2**31 - 1)),
    (MetadataRequest, 0, struct.pack(">i", 50) + bytes(99)),
    (MetadataRequest, 9, b"\xff\xff\xff\xff\x0f"),
    (MetadataRequest, 12, b"\x02" + bytes(16) + b"\xff\xff\xff\xff\x07" + bytes(50)),
    (ProduceRequest, 3, struct.pack(">hhii", -1, 1, 1, 1) + struct.pack(">hi", 0, 2**31 - 1) + bytes(60)),
    (CreateTopicsRequest, 2, struct.pack(">ih", 1, 0) + struct.pack(">ihiii", 1, 1, 1, 0, 2**30) + bytes(50)),
    (ApiVersionsRequest, 3, b"\x01\x01\xff\xff\xff\xff\x0f" + bytes(40)),
    (ApiVersionsRequest, 3, b"\x01\x01\x01\x05\xff\xff\xff\xff\x0f" + bytes(40)),
    (ApiVersionsResponse, 3, bytes(2) + b"\x01" + bytes(4) + b"\x01\x00\x05\xff\xff\xff\xff\x0f"),
    (ApiVersionsResponse, 3, bytes(2) + b"\x01" + bytes(4) + b"\x01\x63\xff\xff\xff\xff\x0f" + bytes(40)),
]


@pytest.mark.parametrize(("message", "version", "body"), UNBOUNDED)
def test_a_length_beyond_the_body_is_refused_and_nothing_is_allocated_for_it(
    message: type[Message], version: int, body: bytes
) -> None:
    message.decode(version, message().encode(version))
    tracemalloc.start()
    try:
        decoded = decodes_or_refuses(lambda: message.decode(version, body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not decoded
    assert peak < 20_000


@pytest.mark.parametrize(
    ("message", "version", "body"),
    [
        (MetadataRequest, 0, struct.pack(">i", 50_000) + bytes(100_000)),
        (MetadataRequest, 9, b"\xd1\x86\x03" + b"\x01\x00" * 50_000 + bytes(4)),
        (FetchRequest, 13, bytes(25) + b"\x89\x27" + (bytes(16) + b"\x01\x00") * 5_000 + b"\x01\x01\x00"),
    ],
)
def test_the_smallest_elements_cost_a_bounded_multiple_of_their_bytes(
    message: type[Message], version: int, body: bytes
) -> None:
    message.decode(version, message().encode(version))
    tracemalloc.start()
    try:
        decoded = message.decode(version, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(decoded.topics) >= 5_000  # type: ignore[attr-defined]
    assert peak < 64 * len(body)


@pytest.mark.parametrize(
    ("message", "version", "body", "complaint"),
    [
        (ApiVersionsRequest, 3, b"\x80\x80\x80\x80\x80\x00\x01\x00", "more than 32 bits"),
        (ApiVersionsRequest, 3, b"\xff\xff\xff\xff\x10" + bytes(9), "more than 32 bits"),
        (ApiVersionsRequest, 3, b"\x02\xff\x01\x00", "not UTF-8"),
        (ApiVersionsRequest, 3, b"\x04\xed\xa0\x80\x01\x00", "not UTF-8"),
        (ApiVersionsRequest, 3, b"\x00\x01\x00", "null"),
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "negative, null"),
        (MetadataRequest, 1, b"\xff\xff\xff\xfe", "negative, null"),
        (MetadataRequest, 9, b"\x02\x00\x00\x00\x00\x00\x00\x00", "null"),
        (ProduceRequest, 3, b"\xff\xfe" + bytes(20), "negative"),
        (FetchRequest, 12, bytes(25) + b"\x01\x01\x01\x01\x00\x03\x02x\x00", "wrong size"),
    ],
)
def test_malformed_values_are_wire_errors_that_say_what_is_wrong(
    message: type[Message], version: int, body: bytes, complaint: str
) -> None:
    with pytest.raises(WireError, match=complaint):
        message.decode(version, body)


def test_a_varint_longer_than_it_needs_to_be_is_accepted_up_to_five_bytes() -> None:
    body = b"\x82\x80\x80\x80\x00a\x01\x00"
    assert ApiVersionsRequest.decode(3, body).client_software_name == "a"


def test_unknown_tagged_fields_are_skipped_where_tags_are_known_and_where_none_are() -> None:
    known = ApiVersionsResponse(error_code=35, finalized_features_epoch=7)
    body = known.encode(3)
    tags = body.index(b"\x01\x01\x08")
    unknown = b"\x63\x03abc" + b"\x80\x01\x00"
    extended = bytes(body[:tags]) + b"\x03" + bytes(body[tags + 1 :]) + unknown
    assert ApiVersionsResponse.decode(3, extended) == known

    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    plain = bytes(request.encode(9))
    assert plain.endswith(b"t\x00\x01\x00\x00\x00")
    tagged = plain[:-5] + b"\x01\x05\x02xx" + plain[-4:-1] + b"\x02\x00\x00\x07\x01y"
    assert MetadataRequest.decode(9, tagged) == request


def test_an_all_topics_metadata_request_may_have_bytes_after_it() -> None:
    body = MetadataRequest(topics=None).encode(13)
    assert MetadataRequest.decode(13, body + b"\x00\x00\x00") == MetadataRequest(topics=None)


@SOME
@given(st.binary(max_size=60), st.booleans())
def test_random_headers_give_a_value_or_a_wire_error(body: bytes, flexible: bool) -> None:
    flexible_from = {int.from_bytes(body[:2], "big", signed=True): -(1 << 15)} if flexible else {}
    decodes_or_refuses(lambda: decode_request_header(memoryview(body), flexible_from))
    decodes_or_refuses(lambda: decode_response_header(memoryview(body), flexible))


def names(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name="") for _ in range(count)])


@pytest.mark.parametrize("version", [1, 9])
def test_a_bounded_decoder_takes_as_many_elements_as_allowed_and_no_more(version: int) -> None:
    most = names(MOST_ELEMENTS)
    assert MetadataRequest.decode_bounded(version, most.encode(version)) == most
    more = bytes(names(MOST_ELEMENTS + 1).encode(version))
    with pytest.raises(WireError, match="more than 65536 elements: split the request"):
        MetadataRequest.decode_bounded(version, more)
    # What others answer is not bounded so.
    assert len(MetadataRequest.decode(version, more).topics or ()) == MOST_ELEMENTS + 1


@pytest.mark.parametrize("version", [3, 9])
def test_elements_of_all_arrays_count_together(version: int) -> None:
    def request(topics: int, partitions: int) -> bytes:
        wanted = [PartitionProduceData(index=0, records=None)] * partitions
        topic = TopicProduceData(name="orders", partition_data=wanted)
        return bytes(ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic] * topics).encode(version))

    for decode in (ProduceRequest.decode_bounded, decode_produce):
        decode(version, memoryview(request(60, 1000)))
        with pytest.raises(WireError, match="elements"):
            decode(version, memoryview(request(66, 1000)))
