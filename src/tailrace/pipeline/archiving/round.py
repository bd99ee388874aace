"""The report of a committed archiving round: its amount, its speed, and the remaining lag.

Owns the value and its text. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.pipeline.jobs.batches import lag_words


@dataclass(frozen=True, slots=True)
class Round:
    """A finished round."""

    number: int
    rows: int
    #: Bytes of keys and values.
    record_bytes: int
    files: int
    #: Bytes of files.
    file_bytes: int
    duration_ms: int
    #: The offsets that are not archived yet, of all partitions; None if unknown.
    lag: int | None
    #: Seconds until the lag is gone at the present pace; None if unknown or if the lag does not shrink.
    eta_seconds: float | None
    #: The present version of each archive to which the round has added.
    versions: Mapping[str, int]
    #: Batches that could not be decoded and are in the archive as they were produced.
    quarantined_batches: int = 0

    @property
    def rows_per_second(self) -> float:
        return self.rows * 1000 / max(1, self.duration_ms)

    @property
    def mb_per_second(self) -> float:
        return self.record_bytes / 1000 / max(1, self.duration_ms)

    def as_json(self) -> dict[str, Any]:
        """Return the round as a JSON object."""
        return {
            "round": self.number,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "record_bytes": self.record_bytes,
            "mb_per_second": round(self.mb_per_second, 1),
            "files": self.files,
            "file_bytes": self.file_bytes,
            "duration_ms": self.duration_ms,
            "lag": self.lag,
            "eta_seconds": None if self.eta_seconds is None else round(self.eta_seconds, 1),
            "versions": dict(self.versions),
            "quarantined_batches": self.quarantined_batches,
        }

    def as_text(self) -> str:
        """Return the round as one line."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        files = "1 file" if self.files == 1 else f"{self.files:,} files"
        parts = [
            f"{rows} to {files} in {self.duration_ms / 1000:.1f} s",
            f"{self.rows_per_second:,.0f} rows/s",
            f"{self.mb_per_second:,.1f} MB/s",
        ]
        if self.quarantined_batches:
            count = self.quarantined_batches
            parts.append("1 batch quarantined" if count == 1 else f"{count:,} batches quarantined")
        parts += lag_words(self.lag, self.eta_seconds)
        return f"round {self.number}: {', '.join(parts)}"
