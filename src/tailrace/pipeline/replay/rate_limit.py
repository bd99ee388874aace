"""The rate limit of a replay: the size of each batch, and the pause before the next.

A batch takes about as much as two seconds allow, and lasts as long as its records take at the given rate; unused
capacity is not saved up. Pure: the caller passes the time.
"""

from __future__ import annotations

#: Long enough for a batch to be worthwhile, short enough not to flood the target.
BURST_SECONDS = 2


class RateLimit:
    """Limits the written records per second, over all tasks together."""

    def __init__(self, records_per_second: int | None) -> None:
        self._rate = records_per_second
        self._burst = 0 if records_per_second is None else max(1, records_per_second * BURST_SECONDS)
        self._offsets = self._burst
        self._free_at = float("-inf")

    def offsets(self, most: int) -> int:
        """Return how many offsets the next batch should take; more if a filter drops most records."""
        return most if self._rate is None else min(most, self._offsets)

    def wrote(self, records: int, began: float) -> None:
        """Note a batch that began at a time, and the number of records that it wrote."""
        if self._rate is None:
            return
        self._free_at = max(self._free_at, began) + records / self._rate
        if records > self._burst:
            self._offsets = max(1, self._offsets * self._burst // records)
        elif records * 2 <= self._burst:
            self._offsets *= 2

    def pause_seconds(self, now: float) -> float:
        """Return how long to wait before the next batch."""
        return max(0.0, self._free_at - now)
