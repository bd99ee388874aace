"""Another codec for a batch: the same records under the same header, or a refusal, and never much memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import HEADER_BYTES, check_produced, read_header, replace_records
from tailrace.records.compression import Compression, compress
from tailrace.records.recompression import repack, unpack, unpacked_limit
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tests.unit.records.strategies import quick

LIMIT = 1 << 20


def recompressed(batch: bytearray, codec: Compression, level: int | None = None) -> bytearray:
    header = read_header(batch)
    return repack(batch, header, unpack(batch, header, LIMIT), codec, level)


@quick
@given(
    values=st.lists(st.binary(max_size=200), min_size=1, max_size=20),
    source=st.sampled_from(list(Compression)),
    target=st.sampled_from(list(Compression)),
)
def test_only_the_codec_changes(values: list[bytes], source: Compression, target: Compression) -> None:
    records = [NewRecord(value, b"key", 1000 + number, (("h", b"x"),)) for number, value in enumerate(values)]
    batch = build_batch(records, compression=source, producer_id=5, producer_epoch=2, base_sequence=7, leader_epoch=3)
    result = recompressed(batch, target)
    before, after = read_header(batch), check_produced(memoryview(result))
    assert after.compression == target
    assert after._replace(attributes=before.attributes, crc=before.crc, batch_length=before.batch_length) == before
    assert list(iterate_records(result, after)) == list(iterate_records(batch, before))


@pytest.mark.parametrize("source", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_bomb_is_refused_and_costs_no_more_memory_than_the_limit(source: Compression) -> None:
    bomb = compress(source, bytes(64 << 20))
    batch = replace_records(build_batch([NewRecord(b"x")]), source, bomb)
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            unpack(batch, read_header(batch), LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert peak < 4 * LIMIT + 2 * len(bomb)


@pytest.mark.parametrize("source", [codec for codec in Compression if codec is not Compression.NONE])
def test_what_does_not_unpack_is_refused_for_good(source: Compression) -> None:
    batch = replace_records(build_batch([NewRecord(b"x")]), source, b"\x01 this was never packed")
    with pytest.raises(KafkaError) as caught:
        unpack(batch, read_header(batch), LIMIT)
    assert caught.value.code is ErrorCode.INVALID_RECORD, "a retry would be the same batch again"


def test_records_that_are_not_packed_are_not_copied() -> None:
    batch = build_batch([NewRecord(b"x" * 100)])
    assert bytes(unpack(batch, read_header(batch), 1)) == bytes(batch[HEADER_BYTES:])


def test_the_limit_follows_the_topic_upwards_only() -> None:
    assert unpacked_limit(1000) == unpacked_limit(1_000_000) == 64 << 20
    assert unpacked_limit(100 << 20) == 800 << 20
