"""Keys belong to the partitions that Kafka's own clients choose."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.murmur2 import murmur2, partition_for_key

with warnings.catch_warnings():
    # kafka-python loads its schemas through a function that Python 3.11 and 3.12 call deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_that_of_kafkas_own_test_vectors(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@given(st.binary(max_size=64))
def test_hash_is_that_of_kafka_python(data: bytes) -> None:
    assert murmur2(data) & 0xFFFFFFFF == murmur2_of_kafka_python(data)


@given(st.binary(max_size=64), st.integers(1, 10_000))
def test_every_key_has_a_partition_that_exists(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for_key(key, partitions) < partitions


def test_a_negative_hash_is_made_positive_by_dropping_its_sign_bit() -> None:
    assert partition_for_key(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_a_topic_without_partitions_has_no_place_for_a_key() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partition_for_key(b"key", 0)
