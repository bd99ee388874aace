"""Bytes that are not the protocol, and invalid batches: refused, never appended, and no other client notices.

One broker takes everything in this file. After each test it must be the same process, serve another client, have
grown by less than a stated bound, and have written one line per refusal and no stack trace.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import pytest
from crc32c import crc32c

from tailrace.broker.handlers import APIS
from tailrace.errors import ErrorCode
from tailrace.records.batch import CONTROL_BIT, HEADER_BYTES
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.apis import FIRST_OWN_KEY, ApiKey
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.describe_groups import DescribeGroupsRequest
from tailrace.wire.messages.fetch import FetchResponse
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.wire.messages.produce import ProduceRequest, ProduceResponse
from tailrace.wire.primitives import MOST_ELEMENTS, encode_uvarint
from tests.fault.target import TOPIC, Target
from tests.support.brokers.watched_broker import WatchedBroker, fetch_request, produce_request, small_batch
from tests.support.clients.raw_client import RawClient, frame_of, request_frame
from tests.support.messages import REQUESTS
from tests.unit.wire.strategies import sample

REQUEST_MAX_BYTES = 4 << 20
MESSAGE_MAX_BYTES = 100_000
_CRC_AT, _ATTRIBUTES_AT = 17, 21


@pytest.fixture(scope="module")
def shared_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    config = {
        "socket.request.max.bytes": str(REQUEST_MAX_BYTES),
        "message.max.bytes": str(MESSAGE_MAX_BYTES),
        "auto.create.topics.enable": "false",
        # These tests read the line of each of hundreds of refusals.
        "tailrace.log.repeats.per.minute": "1000000",
    }
    with WatchedBroker(tmp_path_factory.mktemp("bad-input") / "data", config=config) as broker:
        yield Target(broker)


@pytest.fixture
def target(shared_target: Target) -> Iterator[Target]:
    """The broker of this file, checked after the test."""
    shared_target.broker.forget_peak()
    yield shared_target
    shared_target.check()


# --- frames


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 7, REQUEST_MAX_BYTES + 1, 2**31 - 1])
def test_a_length_out_of_bounds_closes_the_connection(length: int, target: Target) -> None:
    line = target.refused_with_one_line(struct.pack(">i", length) + b"\0" * 100)
    assert f"request of {length} bytes" in line


def test_the_largest_length_allowed_takes_memory_only_for_what_is_sent(target: Target) -> None:
    clients = [RawClient(target.broker.port) for _ in range(50)]
    try:
        for client in clients:
            client.send(struct.pack(">i", REQUEST_MAX_BYTES) + b"\0\x03\0\x09")
        target.check()
    finally:
        for client in clients:
            client.socket.close()


def test_a_frame_cut_anywhere_is_not_answered(target: Target) -> None:
    frame = request_frame(ApiVersionsRequest(client_software_name="a", client_software_version="b"), 3)
    position = len(target.broker.all_error_output())
    for cut in range(len(frame)):
        with RawClient(target.broker.port) as client:
            client.send(frame[:cut])
            client.end_sending()
            assert client.is_closed_by_broker()
    assert target.warnings_since(position) == [], "a client that goes away is nothing to warn of"


def test_bytes_that_make_no_sense_close_the_connection(target: Target) -> None:
    source = random.Random(20)
    position = len(target.broker.all_error_output())
    for _ in range(200):
        with RawClient(target.broker.port) as client:
            # With a valid length, the broker decodes the rest.
            size = source.randrange(8, 300)
            client.send(struct.pack(">i", size) + source.randbytes(size))
            client.end_sending()
            client.receive_frame()
    assert all(" WARNING " in line for line in target.warnings_since(position))


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"]
)
def test_other_protocols_close_the_connection(text: bytes, target: Target) -> None:
    target.refused_with_one_line(text)


# --- APIs and versions


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(target: Target) -> None:
    with RawClient(target.broker.port) as client:
        client.send(frame_of(ApiKey.API_VERSIONS, 99, b"\x02a\x02b\0", flexible=True))
        response = client.read_answer(0, ApiVersionsResponse)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {entry.api_key for entry in response.api_keys} == {key for key in APIS if key < FIRST_OWN_KEY}
        # The connection stays open, as clients that learn versions this way expect.
        again = client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert again.error_code == 0


@pytest.mark.parametrize("key", [key for key in sorted(APIS) if key != ApiKey.API_VERSIONS])
def test_a_version_that_is_not_served_closes_the_connection(key: int, target: Target) -> None:
    api = APIS[key]
    for version in (-1, api.first_decodable - 1, api.max_version + 1, 99, 2**15 - 1):
        line = target.refused_with_one_line(frame_of(key, version, b"\0" * 40))
        assert f"is not supported in version {version}" in line


@pytest.mark.parametrize("key", [-1, 4, 58, 93, 1000, 2**15 - 1, -(2**15)])
def test_an_api_that_is_not_served_closes_the_connection(key: int, target: Target) -> None:
    assert "is not supported" in target.refused_with_one_line(frame_of(key, 0, b"\0" * 40))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_versions_are_advertised_and_refused(version: int, target: Target) -> None:
    with RawClient(target.broker.port) as client:
        served = client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    (produce,) = [entry for entry in served.api_keys if entry.api_key == ApiKey.PRODUCE]
    assert produce.min_version == 0
    target.refused_with_one_line(frame_of(ApiKey.PRODUCE, version, b"\0\x01\0\0\0\0\0\0\0\0"))


# --- batches


def with_crc(batch: bytearray) -> bytes:
    """The batch with a valid CRC."""
    batch[_CRC_AT:_ATTRIBUTES_AT] = crc32c(bytes(batch[_ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(batch)


def patched(layout: str, position: int, value: int, *, values: tuple[bytes, ...] = (b"a", b"b")) -> bytes:
    """A batch with another value in one field, and a valid CRC."""
    batch = bytearray(small_batch(*values))
    struct.pack_into(layout, batch, position, value)
    return with_crc(batch)


def test_a_batch_with_any_byte_changed_is_never_appended(target: Target) -> None:
    batch = small_batch(b"first", b"second")
    before = target.broker.end_offset(TOPIC)
    appended = []
    with RawClient(target.broker.port) as client:
        for position in range(len(batch)):
            for flip in (0x01, 0x80, 0xFF):
                broken = bytearray(batch)
                broken[position] ^= flip
                response = client.ask(produce_request(TOPIC, bytes(broken)), 9, ProduceResponse)
                (result,) = response.responses[0].partition_responses
                if result.error_code == 0:
                    appended.append(position)
                else:
                    assert result.error_code in (
                        ErrorCode.CORRUPT_MESSAGE,
                        ErrorCode.INVALID_RECORD,
                        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                    ), f"byte {position} changed by {flip}: error {result.error_code}"
                    assert result.base_offset == -1
    # The broker writes the base offset and the leader epoch, and overwrites the producer's values.
    assert sorted(set(appended)) == [*range(8), *range(12, 16)]
    assert target.broker.end_offset(TOPIC) == before + 2 * len(appended)


LYING_BATCHES: dict[str, tuple[Callable[[], bytes], set[ErrorCode]]] = {
    "count of 0": (lambda: patched(">i", 57, 0), {ErrorCode.INVALID_RECORD}),
    "negative count": (lambda: patched(">i", 57, -1), {ErrorCode.INVALID_RECORD}),
    "count too large": (lambda: patched(">i", 57, 2**31 - 1), {ErrorCode.INVALID_RECORD}),
    "count and delta do not fit": (lambda: patched(">i", 57, 3), {ErrorCode.INVALID_RECORD}),
    "negative last offset delta": (lambda: patched(">i", 23, -1), {ErrorCode.INVALID_RECORD}),
    "largest last offset delta": (lambda: patched(">i", 23, 2**31 - 1), {ErrorCode.INVALID_RECORD}),
    "length too small": (lambda: patched(">i", 8, 10), {ErrorCode.CORRUPT_MESSAGE}),
    "length too large": (lambda: patched(">i", 8, 10_000), {ErrorCode.CORRUPT_MESSAGE}),
    "negative length": (lambda: patched(">i", 8, -1), {ErrorCode.CORRUPT_MESSAGE}),
    "largest length": (lambda: patched(">i", 8, 2**31 - 1), {ErrorCode.CORRUPT_MESSAGE}),
    "magic 0": (lambda: patched(">b", 16, 0), {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}),
    "magic 1": (lambda: patched(">b", 16, 1), {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}),
    "magic 3": (
        lambda: patched(">b", 16, 3),
        {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.CORRUPT_MESSAGE},
    ),
    "negative magic": (
        lambda: patched(">b", 16, -1),
        {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.CORRUPT_MESSAGE},
    ),
    "compression 5": (lambda: patched(">h", 21, 5), {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}),
    "compression 7": (lambda: patched(">h", 21, 7), {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}),
    "control batch": (lambda: patched(">h", 21, CONTROL_BIT), {ErrorCode.INVALID_RECORD}),
    "producer without sequence": (lambda: patched(">q", 43, 5), {ErrorCode.INVALID_RECORD}),
    "two batches": (lambda: small_batch(b"a") + small_batch(b"b"), {ErrorCode.INVALID_RECORD}),
    "a batch and a piece of another": (lambda: small_batch(b"a") + small_batch(b"b")[:20], {ErrorCode.INVALID_RECORD}),
    "header only": (lambda: small_batch(b"a")[:HEADER_BYTES], {ErrorCode.CORRUPT_MESSAGE}),
    "part of a header": (lambda: small_batch(b"a")[:30], {ErrorCode.CORRUPT_MESSAGE}),
    "one byte": (lambda: b"\0", {ErrorCode.CORRUPT_MESSAGE}),
    "nothing": (lambda: b"", {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "old message set": (
        lambda: struct.pack(">qiIbbii", 0, 14, 0, 1, 0, -1, 0),
        {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT},
    ),
    "too large": (
        lambda: bytes(build_batch([NewRecord(b"x" * MESSAGE_MAX_BYTES, timestamp=1)])),
        {ErrorCode.MESSAGE_TOO_LARGE},
    ),
    "timestamp far ahead": (lambda: patched(">q", 35, 2**62), {ErrorCode.INVALID_TIMESTAMP}),
}


@pytest.mark.parametrize("name", LYING_BATCHES)
def test_a_batch_that_lies_is_refused_and_not_appended(name: str, target: Target) -> None:
    make, expected = LYING_BATCHES[name]
    before = target.broker.end_offset(TOPIC)
    for version in (3, 8, 9, 12):
        result = target.broker.produce(TOPIC, make(), version)
        assert result.error_code in expected
        assert result.base_offset == -1
    assert target.broker.end_offset(TOPIC) == before


def test_records_that_lie_inside_a_sound_batch_harm_no_reader(target: Target) -> None:
    """Produce checks only header and CRC, so readers of stored batches must not trust the records."""
    broker = target.broker
    broker.create_topic("inside")
    for tail in (b"\xff" * 30, b"\x80" * 30, b"\x02\0\0\0\xfe\xff\xff\xff\x0f", b""):
        batch = bytearray(small_batch(b"v"))[:HEADER_BYTES] + tail
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        for compression in range(5):
            struct.pack_into(">h", batch, 21, compression)
            assert broker.produce("inside", with_crc(batch)).error_code == 0
    with RawClient(broker.port) as client:
        data = client.ask(fetch_request("inside"), 11, FetchResponse).responses[0].partitions[0]
        assert data.error_code == 0
        answers = [look_up_time(client, "inside", timestamp) for timestamp in (0, 1, 2, -3)]
    assert set(answers) <= {ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE}


def look_up_time(client: RawClient, topic: str, timestamp: int) -> int:
    """The error of ListOffsets for a timestamp, for which the broker decodes batches."""
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    response = client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7, ListOffsetsResponse)
    return response.topics[0].partitions[0].error_code


@pytest.mark.parametrize("acks", [-2, 2, 2**15 - 1])
def test_acks_that_do_not_exist_are_refused(acks: int, target: Target) -> None:
    before = target.broker.end_offset(TOPIC)
    with RawClient(target.broker.port) as client:
        response = client.ask(produce_request(TOPIC, small_batch(), acks=acks), 9, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert target.broker.end_offset(TOPIC) == before


def test_a_bad_batch_without_acknowledgement_closes_the_connection(target: Target) -> None:
    before = target.broker.end_offset(TOPIC)
    with RawClient(target.broker.port) as client:
        client.send(request_frame(produce_request(TOPIC, b"\0" * 80, acks=0), 9))
        assert client.is_closed_by_broker()
    assert target.broker.end_offset(TOPIC) == before


# --- lengths inside requests


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_huge_length_anywhere_in_a_request_takes_no_memory(key: int, target: Target) -> None:
    """Every position of a body in turn has the largest possible length, in each version."""
    api = APIS[key]
    huge = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x7f\xff")
    for version in range(api.first_decodable, api.max_version + 1):
        body = bytes(sample(REQUESTS[key], version).encode(version))
        flexible = version >= api.request.FLEXIBLE_FROM
        for position in range(min(len(body), 60)):
            for value in huge:
                changed = body[:position] + value + body[position + len(value) :]
                with RawClient(target.broker.port) as client:
                    client.send(frame_of(key, version, changed, flexible=flexible))
                    client.end_sending()
                    client.receive_frame()


# --- requests of very many elements


def many_groups(count: int) -> bytes:
    return request_frame(DescribeGroupsRequest(groups=[""] * count), 5)


def many_topics(count: int) -> bytes:
    return request_frame(MetadataRequest(topics=[MetadataRequestTopic(name="") for _ in range(count)]), 8)


@pytest.mark.parametrize("make", [many_groups, many_topics])
def test_a_request_of_more_elements_than_anybody_needs_closes_the_connection(
    make: Callable[[int], bytes], target: Target
) -> None:
    line = target.refused_with_one_line(make(300_000))
    assert "its arrays have more than 65536 elements: split the request" in line
    # The broker answers the largest allowed request in slices; at its stop, the test checks that no step was long.
    with RawClient(target.broker.port) as client:
        client.send(make(MOST_ELEMENTS))
        assert client.receive_frame() is not None


FLEXIBLE = [key for key in sorted(APIS) if APIS[key].max_version >= APIS[key].request.FLEXIBLE_FROM]


def with_tagged_fields(key: int, count: int) -> bytes:
    """A request of an API in its newest version that ends with this many unknown tagged fields."""
    version = APIS[key].max_version
    message = REQUESTS[key]()
    if isinstance(message, ProduceRequest):
        message.acks = 1  # without acknowledgement there would be no answer
    body = bytes(message.encode(version))
    assert body[-1] == 0, "the last byte of a flexible body without tagged fields is their count"
    return frame_of(key, version, body[:-1] + encode_uvarint(count) + b"\x7f\0" * count, flexible=True)


@pytest.mark.parametrize("key", FLEXIBLE)
def test_some_unknown_tagged_fields_are_skipped(key: int, target: Target) -> None:
    with RawClient(target.broker.port) as client:
        client.send(with_tagged_fields(key, 20))
        assert client.receive_frame() is not None


@pytest.mark.parametrize("key", FLEXIBLE)
def test_tagged_fields_without_end_close_the_connection(key: int, target: Target) -> None:
    with RawClient(target.broker.port) as client:
        client.send(with_tagged_fields(key, 1_000_000))
        assert client.is_closed_by_broker()
