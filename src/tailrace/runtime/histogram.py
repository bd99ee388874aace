"""A histogram: how many measurements fall between which bounds. One list of integers, cheap to update.

It knows neither what is measured nor how it is presented.
"""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """Counts of measurements by upper bound (the last one is unbounded), and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: One more than there are bounds: the last one counts measurements beyond all bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a measurement once or several times; bounds are inclusive upper bounds."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
