"""The report of a finished batch: its rows and speed, the query's lag, and when it catches up.

Owns the values and their text. Pure: it gets Spark's progress and the ends of the logs, and makes no requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.client.groups import Place
from tailrace.pipeline.source.progress import Offsets

#: The number of batches over which the pace is measured: enough to be steady, few enough to follow a change.
_PACE_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished batch."""

    number: int
    rows: int
    duration_ms: int
    #: Rows later than the watermark allows, which were dropped.
    late_rows: int
    #: Offsets between what is processed and the ends of all partitions; None if unknown.
    lag: int | None
    #: Seconds until the lag is gone at the present pace; None if unknown or if the lag does not shrink.
    eta_seconds: float | None

    @property
    def rows_per_second(self) -> float:
        return self.rows * 1000 / max(1, self.duration_ms)

    def as_json(self, job: str) -> dict[str, Any]:
        """Return the batch as a JSON object."""
        return {
            "job": job,
            "batch": self.number,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "duration_ms": self.duration_ms,
            "late_rows": self.late_rows,
            "lag": self.lag,
            "eta_seconds": None if self.eta_seconds is None else round(self.eta_seconds, 1),
        }

    def as_text(self) -> str:
        """Return the batch as one line."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        parts = [f"{rows} in {self.duration_ms / 1000:.1f} s"]
        if self.rows:
            parts.append(f"{self.rows_per_second:,.0f} rows/s")
        if self.late_rows:
            parts.append(f"{self.late_rows:,} too late")
        parts += lag_words(self.lag, self.eta_seconds)
        return f"batch {self.number}: {', '.join(parts)}"


def lag_words(lag: int | None, eta_seconds: float | None) -> list[str]:
    """Describe the lag and when it is gone."""
    if lag is None:
        return ["lag unknown"]
    if lag == 0:
        return ["caught up"]
    return [f"lag {lag:,}", "falling behind" if eta_seconds is None else f"caught up in {span(eta_seconds)}"]


class Pace:
    """How fast a query reduces its lag, from the lag after each of its last batches."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_PACE_BATCHES)

    def eta_seconds(self, now: float, lag: int, rows_per_second: float) -> float | None:
        """Return the seconds until the lag is gone, with new records; after the first batch, its speed alone counts."""
        self._seen.append((now, lag))
        if lag == 0:
            return 0.0
        first, first_lag = self._seen[0]
        gained_per_second = (first_lag - lag) / (now - first) if now > first else rows_per_second
        return lag / gained_per_second if gained_per_second > 0 else None


def batch_of(progress: Mapping[str, Any], lag: int | None, now: float, pace: Pace) -> Batch:
    """Return the batch that a query's progress, as Spark's JSON, describes."""
    rows = int(progress["numInputRows"])
    duration_ms = int(progress["durationMs"].get("triggerExecution", 0))
    late = sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in progress.get("stateOperators", ()))
    eta_seconds = None if lag is None else pace.eta_seconds(now, lag, rows * 1000 / max(1, duration_ms))
    return Batch(int(progress["batchId"]), rows, duration_ms, late, lag, eta_seconds)


def lag_between(processed: Offsets, ends: Mapping[Place, int]) -> int:
    """Return the number of offsets between what is processed and the ends, over all partitions with an end."""
    return sum(max(0, ends[place] - offset) for place, offset in processed.items() if place in ends)


def span(seconds: float) -> str:
    """Format a duration in its two largest units: `40 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    left = max(1, round(seconds))
    if left < 60:
        return f"{left} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    largest = next(position for position, (_, size) in enumerate(units) if left >= size)
    parts = []
    for name, size in units[largest : largest + 2]:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts)
