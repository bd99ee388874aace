"""The header of a batch: what a producer may send, what the broker writes into it, and finding batches in bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    assign_offset,
    check_produced,
    has_valid_crc,
    increment_sequence,
    iterate_batches,
    read_header,
    stamp_append_time,
)
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tests.unit.records.strategies import quick

INT64 = struct.Struct(">q")


def sound(count: int = 3, **options: int) -> bytearray:
    return build_batch([NewRecord(b"value %d" % number, timestamp=1000 + number) for number in range(count)], **options)


def changed(at: int, layout: str, value: int, batch: bytearray | None = None) -> memoryview:
    """A batch with one field of its header changed and a CRC that fits."""
    batch = sound() if batch is None else batch
    struct.pack_into(layout, batch, at, value)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return memoryview(batch)


def refusal(data: memoryview) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check_produced(data)
    return caught.value.code


def test_a_sound_batch_is_accepted_and_described_by_its_header() -> None:
    batch = sound(3, producer_id=7, producer_epoch=2, base_sequence=40, base_offset=100, leader_epoch=5)
    header = check_produced(memoryview(batch))
    assert header == read_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 40, 42)
    assert header.size == len(batch)
    assert not header.is_control
    assert not header.is_transactional


def test_every_flipped_bit_behind_the_crc_is_noticed() -> None:
    batch = sound()
    header = read_header(batch)
    for bit in range(17 * 8, len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not has_valid_crc(damaged, read_header(damaged)), f"bit {bit}"
        with pytest.raises(KafkaError):
            check_produced(memoryview(damaged))
    assert has_valid_crc(batch, header)


@quick
@given(st.binary(max_size=200))
def test_bytes_that_are_no_batch_are_refused_with_a_code(data: bytes) -> None:
    assert refusal(memoryview(data)) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)


@quick
@given(st.data())
def test_a_batch_cut_anywhere_is_refused(data: st.DataObject) -> None:
    batch = sound()
    size = data.draw(st.integers(0, len(batch) - 1))
    assert refusal(memoryview(batch)[:size]) is ErrorCode.CORRUPT_MESSAGE


def test_two_batches_in_one_are_refused() -> None:
    assert refusal(memoryview(sound() + sound())) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_other_formats_are_refused_by_their_magic(magic: int) -> None:
    assert refusal(changed(16, ">b", magic)) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_message_of_the_oldest_format_is_named_as_such_though_it_is_shorter_than_a_header() -> None:
    message = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1)
    assert refusal(memoryview(message)) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize(("count", "delta"), [(0, -1), (-1, -2), (3, 1), (3, 3), (2, 2)])
def test_the_number_of_records_must_fit_the_offsets(count: int, delta: int) -> None:
    batch = sound()
    struct.pack_into(">i", batch, 23, delta)
    assert refusal(changed(57, ">i", count, batch)) is ErrorCode.INVALID_RECORD


def test_control_batches_are_for_brokers_only() -> None:
    assert refusal(changed(21, ">h", 0x20)) is ErrorCode.INVALID_RECORD


def test_an_idempotent_producer_must_count_its_records() -> None:
    assert refusal(memoryview(sound(producer_id=5))) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    assert refusal(changed(21, ">h", codec)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@quick
@given(offset=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**31 - 1))
def test_offset_and_epoch_are_written_without_touching_the_crc(offset: int, epoch: int) -> None:
    batch = sound()
    before = read_header(batch)
    assign_offset(memoryview(batch), offset, epoch)
    after = read_header(batch)
    assert after == before._replace(base_offset=offset, leader_epoch=epoch)
    assert has_valid_crc(batch, after)


def test_a_stamped_batch_says_when_it_was_appended_and_is_still_sound() -> None:
    batch = sound()
    stamp_append_time(memoryview(batch), read_header(batch).attributes, 99_000)
    header = read_header(batch)
    assert has_valid_crc(batch, header)
    assert header.attributes & LOG_APPEND_TIME_BIT
    assert [record.timestamp for record in iterate_records(batch, header)] == [99_000] * 3


@pytest.mark.parametrize(
    ("sequence", "by", "expected"),
    [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2), (0, -1, 2**31 - 1), (5, 0, 5)],
)
def test_sequence_numbers_start_again_after_the_largest(sequence: int, by: int, expected: int) -> None:
    assert increment_sequence(sequence, by) == expected


def test_batches_are_found_one_after_another_up_to_the_first_that_is_cut() -> None:
    batches = [sound(count) for count in (1, 2, 3)]
    data = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    for end in range(len(data) + 1):
        whole = [start for start, batch in zip(starts, batches, strict=True) if start + len(batch) <= end]
        assert [position for position, _ in iterate_batches(data[:end])] == whole


@quick
@given(st.binary(max_size=300))
def test_looking_for_batches_in_any_bytes_comes_to_an_end(data: bytes) -> None:
    for position, header in iterate_batches(data):
        assert HEADER_BYTES <= header.size <= len(data) - position
