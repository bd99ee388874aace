"""A histogram: how often a measurement fell between which bounds. One list of whole numbers, cheap to add to.

It must not know what is measured, nor how it is shown.
"""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """Counts of measurements by upper bound, the last one without any, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: One more than there are bounds: the last counts what is beyond all of them.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a measurement, once or several times; a bound belongs to what is below it."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
