"""The codecs: what goes in comes out, damage is CORRUPT_MESSAGE, and nothing unpacks to more than is allowed."""

from __future__ import annotations

import gzip
import tracemalloc
from random import Random

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.compression import Compression, compress, decompress
from tests.unit.records.strategies import quick

CODECS = list(Compression)
PACKERS = [codec for codec in Compression if codec is not Compression.NONE]
LZ4_INDEPENDENT_BLOCKS = 0x20
LIMIT = 10_000


def unpacks_within_the_limit_or_is_corrupt(codec: Compression, data: bytes) -> bool:
    try:
        return len(decompress(codec, data, limit=LIMIT)) <= LIMIT
    except KafkaError as error:
        return error.code is ErrorCode.CORRUPT_MESSAGE


@quick
@given(codec=st.sampled_from(CODECS), data=st.binary(max_size=2000), times=st.integers(1, 200))
def test_what_is_packed_unpacks_to_the_same(codec: Compression, data: bytes, times: int) -> None:
    assert bytes(decompress(codec, compress(codec, data * times))) == data * times


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_what_is_packed_unpacks_to_the_same_across_block_sizes(codec: Compression, size: int) -> None:
    for data in (bytes(size), Random(size).randbytes(size)):
        assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", PACKERS)
@pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
def test_exactly_the_limit_is_allowed_and_one_byte_more_is_not(codec: Compression, size: int) -> None:
    packed = compress(codec, bytes(size))
    assert bytes(decompress(codec, packed, limit=size)) == bytes(size)
    if size:
        with pytest.raises(KafkaError) as caught:
            decompress(codec, packed, limit=size - 1)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", PACKERS)
def test_a_bomb_costs_no_more_memory_than_the_limit(codec: Compression) -> None:
    limit = 1 << 20
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            decompress(codec, bomb, limit=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert peak < 4 * limit + 2 * len(bomb)


def test_a_snappy_block_that_claims_more_than_it_can_hold_is_not_believed() -> None:
    claim = b"\xff\xff\xff\xff\x01" + bytes(20)  # 512 MiB in 20 bytes
    with pytest.raises(KafkaError) as caught:
        decompress(Compression.SNAPPY, claim)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert "cannot hold" in str(caught.value)


@quick
@given(codec=st.sampled_from(PACKERS), data=st.binary(max_size=300))
def test_bytes_that_were_never_packed_are_corrupt_or_unpack_within_the_limit(codec: Compression, data: bytes) -> None:
    assert unpacks_within_the_limit_or_is_corrupt(codec, data)


@quick
@given(codec=st.sampled_from(PACKERS), seed=st.integers(0, 2**32))
def test_damaged_bytes_are_corrupt_or_unpack_within_the_limit(codec: Compression, seed: int) -> None:
    random = Random(seed)
    packed = bytearray(compress(codec, b"some records " * 50))
    for _ in range(random.randint(1, 4)):
        packed[random.randrange(len(packed))] = random.randrange(256)
    assert unpacks_within_the_limit_or_is_corrupt(codec, bytes(packed[: random.randint(1, len(packed))]))


@pytest.mark.parametrize("codec", PACKERS)
@pytest.mark.parametrize("content", ["even", "random"])
def test_what_is_cut_anywhere_is_corrupt_and_never_just_shorter(codec: Compression, content: str) -> None:
    data = bytes(300_000) if content == "even" else Random(7).randbytes(300_000)
    packed = compress(codec, data)
    steps = range(1, len(packed)) if len(packed) < 3000 else range(1, len(packed), len(packed) // 500)
    for cut in steps:
        # Snappy blocks follow each other without an end: a cut between two of them shows nowhere.
        if codec is Compression.SNAPPY and is_between_blocks(packed, cut):
            assert len(decompress(codec, packed[:cut])) % (32 * 1024) == 0
            continue
        with pytest.raises(KafkaError) as caught:
            decompress(codec, packed[:cut])
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def is_between_blocks(packed: bytes, cut: int) -> bool:
    position = 16
    while position < cut:
        position += 4 + int.from_bytes(packed[position : position + 4], "big")
    return position == cut


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Compression.GZIP, (-1, 1, 9)),
        (Compression.LZ4, (1, 2, 9, 12, 17)),
        (Compression.ZSTD, (-131072, -1, 1, 3, 22)),
    ],
)
def test_every_level_unpacks_to_the_same(codec: Compression, levels: tuple[int, ...]) -> None:
    data = b"".join(b"%d records and more of them" % number for number in range(5000))
    sizes = []
    for level in levels:
        packed = compress(codec, data, level)
        assert bytes(decompress(codec, packed)) == data
        sizes.append(len(packed))
    assert len(set(sizes)) > 1, "the level changes nothing"


def test_gzip_streams_that_follow_each_other_are_one() -> None:
    packed = gzip.compress(b"first ") + gzip.compress(b"second")
    assert decompress(Compression.GZIP, packed) == b"first second"
    with pytest.raises(KafkaError):
        decompress(Compression.GZIP, packed, limit=11)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, b"anything")
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_what_other_programs_pack_is_understood() -> None:
    data = b"records " * 40_000
    assert decompress(Compression.GZIP, gzip.compress(data)) == data
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
    assert decompress(Compression.LZ4, lz4.frame.compress(data, block_linked=True, store_size=False)) == data
    assert decompress(Compression.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(data)) == data


def test_lz4_blocks_do_not_depend_on_each_other_since_the_java_client_refuses_those() -> None:
    frame = compress(Compression.LZ4, Random(1).randbytes(300_000))
    assert frame[4] & LZ4_INDEPENDENT_BLOCKS


def test_snappy_is_framed_in_blocks_as_java_does() -> None:
    assert compress(Compression.SNAPPY, b"x").startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
