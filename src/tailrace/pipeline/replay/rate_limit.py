"""How fast a replay may go: how much each batch takes, and how long to wait before the next.

A batch takes about as much as two seconds allow, and stands for as long as its records take at the given rate; what
was not used is not saved up. Pure: the time is handed in.
"""

from __future__ import annotations

#: A batch is worth the effort of one, and is still no flood.
BURST_SECONDS = 2


class RateLimit:
    """Keeps what is written within a number of records a second, over all tasks together."""

    def __init__(self, records_per_second: int | None) -> None:
        self._rate = records_per_second
        self._burst = 0 if records_per_second is None else max(1, records_per_second * BURST_SECONDS)
        self._offsets = self._burst
        self._free_at = float("-inf")

    def offsets(self, most: int) -> int:
        """How many offsets the next batch should take; a filter that keeps little lets it take more."""
        return most if self._rate is None else min(most, self._offsets)

    def wrote(self, records: int, began: float) -> None:
        """Take note of a batch that began at a time and wrote so many records."""
        if self._rate is None:
            return
        self._free_at = max(self._free_at, began) + records / self._rate
        if records > self._burst:
            self._offsets = max(1, self._offsets * self._burst // records)
        elif records * 2 <= self._burst:
            self._offsets *= 2

    def pause_seconds(self, now: float) -> float:
        """How long to wait before the next batch begins."""
        return max(0.0, self._free_at - now)
