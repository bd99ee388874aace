"""Which offsets of a topic are sampled, and what is guessed from values."""

from __future__ import annotations

import pytest

from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.sql.sampling import Sample, guess_format, sampled_ranges


def test_a_small_topic_is_sampled_whole_and_once() -> None:
    ranges = [OffsetRange("t", 0, 5, 25), OffsetRange("t", 1, 0, 3)]
    assert list(sampled_ranges(ranges, 1000)) == ranges


def test_a_large_topic_is_sampled_at_both_ends_and_in_the_middle_of_each_partition() -> None:
    ranges = [OffsetRange("t", partition, 100, 100_100) for partition in range(2)]
    assert list(sampled_ranges(ranges, 600)) == [
        OffsetRange("t", 0, 100, 200),
        OffsetRange("t", 0, 50_050, 50_150),
        OffsetRange("t", 0, 100_000, 100_100),
        OffsetRange("t", 1, 100, 200),
        OffsetRange("t", 1, 50_050, 50_150),
        OffsetRange("t", 1, 100_000, 100_100),
    ]


def test_of_many_partitions_some_are_sampled() -> None:
    pieces = list(sampled_ranges([OffsetRange("t", partition, 0, 10_000) for partition in range(1000)], 2000))
    assert len({piece.partition for piece in pieces}) <= 16
    assert sum(piece.size for piece in pieces) <= 2000


def test_nothing_is_sampled_of_nothing() -> None:
    assert list(sampled_ranges([], 1000)) == []


@pytest.mark.parametrize(
    ("values", "format"),
    [
        ([b'{"id": 1}', b'{"id": 2}', b"broken"], "json"),
        ([b'{"id": 1}', b"5", b"[1]"], "text"),
        ([b"plain", "ä".encode(), b"\xff\xfe"], "text"),
        ([b"\x00\x00\x00\x00\x05\xfe\xff", b"\xff\x00"], "raw"),
        ([b"\x00\x00", b"\x00\x01"], "raw"),
        ([], "text"),
    ],
)
def test_the_format_is_what_most_values_are(values: list[bytes], format: str) -> None:
    assert guess_format(Sample(len(values), tuple(values))) == format
