"""Headers and frames, compared with the bytes that kafka-python writes."""

from __future__ import annotations

import struct
import warnings

import pytest

from tailrace.errors import WireError
from tailrace.wire.apis import ApiKey
from tailrace.wire.frames import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
)
from tailrace.wire.messages.metadata import MetadataRequest
from tailrace.wire.primitives import encode_uvarint, read_uvarint
from tests.support.response_header import encode_response_header

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.metadata import MetadataRequest as TheirMetadataRequest


@pytest.mark.parametrize("client_id", ["tester", "", "ü", None])
@pytest.mark.parametrize("flexible", [False, True])
def test_a_request_header_comes_back_with_the_position_of_the_body(client_id: str | None, flexible: bool) -> None:
    header = RequestHeader(3, 9, 77, client_id)
    frame = encode_request(header, flexible, b"body")
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    body = memoryview(frame)[4:]
    decoded, position = decode_request_header(body, {3: 9 if flexible else 10})
    assert decoded == header
    assert bytes(body[position:]) == b"body"


@pytest.mark.parametrize("version", [0, 8, 9, 12])
def test_a_request_frame_is_what_kafka_python_sends(version: int) -> None:
    theirs = TheirMetadataRequest(version=version, topics=[])
    theirs.with_header(correlation_id=5, client_id="me")
    ours = encode_request(
        RequestHeader(ApiKey.METADATA, version, 5, "me"),
        MetadataRequest.is_flexible(version),
        MetadataRequest(topics=[], allow_auto_topic_creation=theirs.allow_auto_topic_creation).encode(version),
    )
    assert ours == theirs.encode(header=True, framed=True)


def test_tagged_fields_of_a_header_are_skipped() -> None:
    head = struct.pack(">hhih", 3, 9, 77, -1) + b"\x02\x00\x01x\x07\x00" + b"rest"
    header, position = decode_request_header(memoryview(head), {ApiKey.METADATA: MetadataRequest.FLEXIBLE_FROM})
    assert header == RequestHeader(3, 9, 77, None)
    assert head[position:] == b"rest"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        struct.pack(">hhi", 3, 9, 77),
        struct.pack(">hhih", 3, 9, 77, 1),
        struct.pack(">hhih", 3, 9, 77, -2),
        struct.pack(">hhih", 3, 9, 77, 1) + b"\xff\x00",
        struct.pack(">hhih", 3, 9, 77, -1),
        struct.pack(">hhih", 3, 9, 77, -1) + b"\x01",
        struct.pack(">hhih", 3, 9, 77, -1) + b"\x01\x00\x09x",
        struct.pack(">hhih", 3, 9, 77, -1) + b"\xff\xff\xff\xff\xff\x01",
    ],
)
def test_a_malformed_request_header_is_a_wire_error(head: bytes) -> None:
    with pytest.raises(WireError):
        decode_request_header(memoryview(head), {ApiKey.METADATA: MetadataRequest.FLEXIBLE_FROM})


@pytest.mark.parametrize("flexible", [False, True])
def test_a_response_header_comes_back(flexible: bool) -> None:
    body = memoryview(encode_response_header(-5, flexible) + b"body")
    correlation_id, position = decode_response_header(body, flexible)
    assert correlation_id == -5
    assert bytes(body[position:]) == b"body"
    assert position == (5 if flexible else 4)


@pytest.mark.parametrize(("head", "flexible"), [(b"", False), (b"abc", True), (b"abcd", True), (b"abcd\x01", True)])
def test_a_malformed_response_header_is_a_wire_error(head: bytes, flexible: bool) -> None:
    with pytest.raises(WireError):
        decode_response_header(memoryview(head), flexible)


def test_an_api_that_is_not_known_has_a_header_without_tagged_fields() -> None:
    head = struct.pack(">hhih", ApiKey.WRITE_TXN_MARKERS, 9, 77, -1) + b"rest"
    header, position = decode_request_header(memoryview(head), {ApiKey.METADATA: MetadataRequest.FLEXIBLE_FROM})
    assert header == RequestHeader(ApiKey.WRITE_TXN_MARKERS, 9, 77, None)
    assert head[position:] == b"rest"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**28, 2**32 - 1])
def test_varints_come_back_and_end_where_they_end(value: int) -> None:
    encoded = encode_uvarint(value)
    assert read_uvarint(memoryview(b"x" + encoded + b"y"), 1) == (value, 1 + len(encoded))
    for size in range(len(encoded)):
        with pytest.raises(WireError):
            read_uvarint(memoryview(encoded[:size]), 0)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_what_is_no_unsigned_32_bit_number_is_not_a_varint(value: int) -> None:
    with pytest.raises(ValueError, match="unsigned 32-bit"):
        encode_uvarint(value)
