"""Topics, numbers of rows and figures for measuring the data source `tailrace` and Spark's Kafka connector.

Pure data and arithmetic. Must not know Spark: the run and the sessions that it starts both import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTITIONS = 4
KEY_BYTES = 10
OURS = "tailrace"
CONNECTOR = "kafka-connector"
#: The name for `format(...)`.
FORMATS = {OURS: "tailrace", CONNECTOR: "kafka"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one size, in bytes of key and value together."""

    name: str
    record_bytes: int
    read: int
    written: int

    def scaled(self, scale: float) -> Rows:
        """Return the same with a share of the rows."""
        return Rows(self.name, self.record_bytes, max(1, int(self.read * scale)), max(1, int(self.written * scale)))


SIZES = (Rows("100b", 100, 10_000_000, 4_000_000), Rows("1k", 1_000, 2_000_000, 800_000))
ACTIONS = ("count", "parquet", "write")


def topic_of(rows: Rows) -> str:
    """Return the topic that both read."""
    return f"rows-{rows.name}"


def figures(rows: int, record_bytes: int, seconds: float) -> dict[str, float]:
    """Return rows and megabytes a second; the bytes are those of keys and values."""
    return {"rows_s": rows / seconds, "throughput_mb_s": rows * record_bytes / seconds / 1e6, "seconds": seconds}


def cpu_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU seconds that a session's processes used between two measurements; new processes count fully.

    Processes that have ended do not count: Spark ends a Python worker only after a minute without use.
    """
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
