"""Which partition rows go to: by name, by the hash that Kafka's Java client takes, or in turn."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.murmur2 import murmur2, partition_for_key
from tailrace.pipeline.arrow.record_encoding import BYTES, RowError
from tailrace.pipeline.sink.partition_choice import STICKY_BYTES, Turns, choose_partitions, murmur2_column

#: Of the Java client's own tests.
JAVA = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}


def keys_of(*keys: bytes | None) -> pa.Array:
    return pa.array(keys, BYTES)


def choose(keys: pa.Array | None, named: list[int | None] | None, partitions: int, count: int) -> list[int]:
    column = None if named is None else pa.array(named, pa.int32())
    sizes = np.full(count, 100, np.int64)
    return choose_partitions(keys, column, sizes, partitions, "orders", Turns(0)).tolist()


def test_hashes_are_those_of_the_java_client() -> None:
    assert murmur2_column(keys_of(*JAVA)).astype(np.int32).tolist() == list(JAVA.values())


@given(st.lists(st.binary(max_size=50), min_size=1), st.integers(0, 5))
def test_a_column_is_hashed_as_each_of_its_keys_is(keys: list[bytes], first: int) -> None:
    column = keys_of(*keys)[min(first, len(keys) - 1) :]
    assert murmur2_column(column).astype(np.int32).tolist() == [murmur2(key) for key in column.to_pylist()]


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1), st.integers(1, 200))
def test_a_key_goes_where_the_java_client_sends_it(keys: list[bytes | None], partitions: int) -> None:
    chosen = choose(keys_of(*keys), None, partitions, len(keys))
    for key, partition in zip(keys, chosen, strict=True):
        assert 0 <= partition < partitions
        assert key is None or partition == partition_for_key(key, partitions)


def test_a_row_goes_to_the_partition_it_names_and_by_its_key_where_it_names_none() -> None:
    keys = keys_of(b"a", b"b", b"c", None)
    chosen = choose(keys, [2, None, 0, 1], 3, 4)
    assert chosen == [2, partition_for_key(b"b", 3), 0, 1]
    assert choose(keys, [2, 2, 2, 2], 3, 4) == [2, 2, 2, 2]
    assert choose(keys, [None] * 4, 3, 4)[:3] == [partition_for_key(key, 3) for key in (b"a", b"b", b"c")]


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_partition_that_the_topic_has_not_is_refused(wrong: int) -> None:
    with pytest.raises(RowError, match=f"names partition {wrong}, but topic 'orders' has partitions 0 to 2"):
        choose(None, [None, wrong, 1], 3, 3)


def test_rows_without_keys_go_to_partitions_in_turn_in_runs() -> None:
    turns = Turns(0)
    few = turns.assign(np.full(10, 100), 4)
    assert few.tolist() == [0] * 10
    assert turns.assign(np.full(10, 100), 4).tolist() == [1] * 10
    many = turns.assign(np.full(10_000, 100), 4)
    assert Counter(many.tolist()) == Counter({0: 2500, 1: 2500, 2: 2500, 3: 2500})
    assert np.count_nonzero(np.diff(many)) == 3
    one_run = turns.assign(np.full(STICKY_BYTES // 100, 100), 4)
    assert len(set(one_run.tolist())) == 1
