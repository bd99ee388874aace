"""A histogram counts every measurement once, under the first bound that it does not exceed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.runtime.histogram import Histogram


def test_a_bound_belongs_to_what_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 7.1


@given(st.lists(st.floats(0, 100)))
def test_every_measurement_is_counted_once(values: list[float]) -> None:
    bounds = (0.5, 5.0, 50.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    assert sum(histogram.counts) == len(values)
    for position, bound in enumerate(bounds):
        assert sum(histogram.counts[: position + 1]) == sum(value <= bound for value in values)
