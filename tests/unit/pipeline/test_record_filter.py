"""What Spark's filters leave: never less than Spark itself, which checks every row again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tailrace.pipeline.source.record_filter import RecordFilter, filter_for

TIME = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
TIME_US = 1_767_323_045_000_678


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], RecordFilter()),
        ([EqualTo(("partition",), 3)], RecordFilter(partitions=frozenset((3,)))),
        ([In(("partition",), (1, 2, None)), In(("partition",), (2, 3))], RecordFilter(partitions=frozenset((2,)))),
        ([EqualNullSafe(("topic",), "a")], RecordFilter(topics=frozenset(("a",)))),
        ([GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9)], RecordFilter(min_offset=6, max_offset=9)),
        ([GreaterThanOrEqual(("OFFSET",), 5), LessThan(("offset",), 9)], RecordFilter(min_offset=5, max_offset=8)),
        ([In(("offset",), (4, 2, 7))], RecordFilter(min_offset=2, max_offset=7)),
        ([EqualTo(("timestamp",), TIME)], RecordFilter(min_timestamp_us=TIME_US, max_timestamp_us=TIME_US)),
        (
            [GreaterThan(("timestamp",), TIME.astimezone(timezone(timedelta(hours=2))))],
            RecordFilter(min_timestamp_us=TIME_US + 1),
        ),
        # What says nothing about these columns, or says it in a way that is not understood, leaves everything.
        ([Not(EqualTo(("partition",), 3)), IsNotNull(("offset",))], RecordFilter()),
        ([EqualTo(("value",), b"x"), EqualTo(("offset", "inner"), 3)], RecordFilter()),
        ([EqualTo(("partition",), "3"), EqualTo(("offset",), 2.5), In(("offset",), ())], RecordFilter()),
        ([StringStartsWith(("topic",), "a"), GreaterThan(("topic",), "a")], RecordFilter()),
        ([EqualTo(("timestamp",), TIME.replace(tzinfo=None)), EqualTo(("offset",), None)], RecordFilter()),
    ],
)
def test_filters_become_bounds(filters: list[Filter], left: RecordFilter) -> None:
    assert filter_for(filters) == left


def test_partitions_are_taken_by_topic_and_number() -> None:
    only = RecordFilter(topics=frozenset(("a",)), partitions=frozenset((1,)))
    assert only.takes("a", 1)
    assert not only.takes("a", 2)
    assert not only.takes("b", 1)
