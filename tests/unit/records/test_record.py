"""Records of a batch: built and read back, and never trusted beyond their bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import HEADER_BYTES, check_produced, has_valid_crc, read_header
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, Record, build_batch, build_keyed_batch, iterate_records
from tests.unit.records.strategies import quick, record_lists


def with_body(body: bytes, count: int = 1) -> bytearray:
    """A batch with a valid CRC around any bytes."""
    batch = build_batch([NewRecord(b"")] * max(1, count))[:HEADER_BYTES] + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def read(batch: bytearray) -> list[Record]:
    return list(iterate_records(batch, read_header(batch)))


def read_or_refuse(batch: bytearray) -> list[Record] | ErrorCode:
    try:
        return read(batch)
    except KafkaError as error:
        return error.code


def refusal(batch: bytearray) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        read(batch)
    return caught.value.code


@quick
@given(records=record_lists, codec=st.sampled_from(Compression), base_offset=st.integers(0, 2**60))
def test_what_is_built_is_sound_and_reads_back_the_same(
    records: list[NewRecord], codec: Compression, base_offset: int
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    header = check_produced(memoryview(batch))
    assert has_valid_crc(batch, header)
    assert header.compression == codec
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert list(iterate_records(batch, header)) == [
        Record(base_offset + delta, record.timestamp, record.key, record.value, record.headers)
        for delta, record in enumerate(records)
    ]


@quick
@given(records=record_lists)
def test_a_batch_is_read_where_it_stands_among_others(records: list[NewRecord]) -> None:
    first, second = build_batch([NewRecord(b"before")]), build_batch(records)
    data = first + second + first
    position = len(first)
    values = [record.value for record in iterate_records(data, read_header(data, position), position)]
    assert values == [record.value for record in records]


@quick
@given(body=st.binary(max_size=100), count=st.integers(-5, 2**31 - 1), codec=st.integers(0, 7))
def test_any_bytes_with_a_valid_crc_give_records_or_an_error_code(body: bytes, count: int, codec: int) -> None:
    batch = with_body(body, 1)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 57, count)
    result = read_or_refuse(batch)
    if isinstance(result, list):
        assert len(result) == max(0, count)
    else:
        assert result in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@quick
@given(data=st.data(), records=record_lists)
def test_any_changed_byte_gives_records_or_an_error_code(data: st.DataObject, records: list[NewRecord]) -> None:
    batch = build_batch(records)
    at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    result = read_or_refuse(batch)
    assert isinstance(result, list) or result is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x7e", "longer than its batch"),
        (b"\x01", "longer than its batch"),
        (b"\x0c\x00\x00\x00\x7e\x01\x00\x00", "longer than its record"),
        (b"\x0c\x00\x00\x00\x01\x01\x7e", "number of headers"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "number of headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "no name"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "not as long as it says"),
        (b"\x0a\x00\x00\x00\x01\x01\x00", "number of headers"),
        (b"\xff" * 11, "too long"),
        (b"", "ends early"),
    ],
)
def test_a_record_that_lies_about_a_length_is_corrupt(body: bytes, why: str) -> None:
    with pytest.raises(KafkaError, match=why) as caught:
        read(with_body(body))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_fewer_records_than_the_header_says_are_corrupt() -> None:
    batch = build_batch([NewRecord(b"only one")])
    struct.pack_into(">i", batch, 57, 2)
    assert refusal(batch) is ErrorCode.CORRUPT_MESSAGE


def test_the_limit_on_decompression_holds_for_records_too() -> None:
    batch = build_batch([NewRecord(bytes(100_000))], compression=Compression.ZSTD)
    with pytest.raises(KafkaError, match="more than 1000 bytes"):
        list(iterate_records(batch, read_header(batch), limit=1000))


def test_a_header_name_that_is_no_text_does_not_make_the_batch_unreadable() -> None:
    batch = build_batch([NewRecord(b"value", headers=(("caf\u00e9", b"x"),))])
    at = batch.index("\u00e9".encode())
    batch[at : at + 2] = b"\xff\xfe"
    assert read(batch)[0].value == b"value"


@quick
@given(
    st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=9000)), min_size=1, max_size=70),
    st.integers(0, 2**62),
)
def test_a_batch_of_keys_and_values_of_one_time_is_the_one_that_records_make(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int
) -> None:
    batch = build_keyed_batch(pairs, timestamp)
    assert batch == build_batch([NewRecord(value, key, timestamp) for key, value in pairs])
    assert [(record.key, record.value, record.timestamp) for record in read(batch)] == [
        (key, value, timestamp) for key, value in pairs
    ]
    check_produced(memoryview(batch))
