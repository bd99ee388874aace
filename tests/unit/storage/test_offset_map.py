"""The newest offset of each key, in bounded memory, there and back through a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.storage.offset_map import SLOT_BYTES, OffsetMap

SALT = bytes(range(16))


@given(st.lists(st.binary(max_size=3), max_size=400), st.sampled_from([1, 10 * SLOT_BYTES, 1 << 20]))
def test_it_answers_as_a_dictionary_does(keys: list[bytes], max_bytes: int) -> None:
    offsets = OffsetMap(max_bytes, 0.9, SALT)
    expected = {}
    for offset, key in enumerate(keys):
        offsets.put(key, offset)
        expected[key] = offset
    offsets.latest_offset = len(keys)
    for found in (offsets, OffsetMap.load(offsets.dump())):
        assert len(found) == len(expected)
        assert found.latest_offset == len(keys)
        assert {key: found.get(key) for key in keys} == expected
        assert found.get(b"never put") == -1


def test_it_says_when_it_has_as_many_keys_as_it_was_allowed() -> None:
    offsets = OffsetMap(100 * SLOT_BYTES, 0.9, SALT)
    for number in range(90):
        assert offsets.has_room_for(90 - number)
        assert not offsets.has_room_for(91 - number)
        offsets.put(b"%d" % number, number)
    assert len(offsets.dump()) <= 100 * SLOT_BYTES + 100


def test_its_size_follows_the_number_of_keys() -> None:
    offsets = OffsetMap(128 << 20, 0.9, SALT)
    assert len(offsets.dump()) < 30_000
    for number in range(5000):
        offsets.put(b"a long key that costs no more than a short one %d" % number, number)
    assert len(offsets.dump()) < 10_000 * SLOT_BYTES


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_a_file_that_was_cut_is_refused(cut: int) -> None:
    content = OffsetMap(1 << 10, 0.9, SALT).dump()
    for damaged in (content[:-cut], b""):
        with pytest.raises(ValueError, match="is truncated"):
            OffsetMap.load(damaged)
