"""However ranges are split and limited, every offset is in exactly one range, and no limit is passed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import TopicPartition
from tailrace.pipeline.source.ranges import OffsetRange, limit_ends, ranges_between, split_ranges

RANGES = st.dictionaries(
    st.integers(min_value=0, max_value=9),
    st.tuples(st.integers(min_value=0, max_value=1 << 40), st.integers(min_value=1, max_value=5000)),
    max_size=6,
).map(lambda found: [OffsetRange("a", number, start, start + size) for number, (start, size) in found.items()])
WANTED = st.none() | st.integers(min_value=1, max_value=40)


@given(ranges=RANGES, min_partitions=WANTED, max_records=WANTED)
def test_every_offset_is_in_exactly_one_piece(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split_ranges(ranges, min_partitions, max_records)
    assert all(piece.size > 0 for piece in pieces)
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    for one in ranges:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        assert [piece.start for piece in mine] == [one.start, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == one.end


def test_large_ranges_are_split_and_small_ones_left() -> None:
    pieces = split_ranges([OffsetRange("a", 0, 0, 1000), OffsetRange("a", 1, 0, 10)], 5, None)
    assert [(piece.partition, piece.size) for piece in pieces] == [(0, 250)] * 4 + [(1, 10)]


def test_empty_ranges_and_ranges_backwards_are_left_out() -> None:
    starts = {TopicPartition("a", 0): 5, TopicPartition("a", 1): 9, TopicPartition("a", 2): 0}
    ends = {TopicPartition("a", 2): 1, TopicPartition("a", 0): 5, TopicPartition("a", 1): 8}
    assert ranges_between(starts, ends) == [OffsetRange("a", 2, 0, 1)]


@given(
    sizes=st.dictionaries(st.integers(0, 9), st.integers(min_value=0, max_value=10_000), min_size=1),
    limit=st.integers(min_value=1, max_value=20_000),
)
def test_a_limit_is_kept_but_for_one_record_of_each_partition(sizes: dict[int, int], limit: int) -> None:
    starts = {TopicPartition("a", number): 100 for number in sizes}
    ends = {TopicPartition("a", number): 100 + size for number, size in sizes.items()}
    limited = limit_ends(starts, ends, limit)
    taken = {name.partition: limited[name] - starts[name] for name in limited}
    assert all(0 <= taken[number] <= size for number, size in sizes.items())
    assert sum(taken.values()) <= limit + len(sizes)
    # Nobody who has something waits for ever.
    assert all(taken[number] > 0 for number, size in sizes.items() if size)
    if sum(sizes.values()) <= limit:
        assert limited == ends
