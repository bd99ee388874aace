"""What the data source `tailrace` and Spark's Kafka connector are measured by: topics, numbers of rows, figures.

Pure data and arithmetic. Must not know Spark: it is imported by the run and by the sessions that the run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTITIONS = 4
KEY_BYTES = 10
OURS = "tailrace"
CONNECTOR = "kafka-connector"
#: What stands in `format(...)`.
FORMATS = {OURS: "tailrace", CONNECTOR: "kafka"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one size, in bytes of key and value together."""

    name: str
    record_bytes: int
    read: int
    written: int

    def scaled(self, scale: float) -> Rows:
        """The same with a share of the rows."""
        return Rows(self.name, self.record_bytes, max(1, int(self.read * scale)), max(1, int(self.written * scale)))


SIZES = (Rows("100b", 100, 10_000_000, 4_000_000), Rows("1k", 1_000, 2_000_000, 800_000))
ACTIONS = ("count", "parquet", "write")


def topic_of(rows: Rows) -> str:
    """The topic that both read."""
    return f"rows-{rows.name}"


def figures(rows: int, record_bytes: int, seconds: float) -> dict[str, float]:
    """Rows and megabytes a second; the bytes are those of keys and values."""
    return {"rows_s": rows / seconds, "throughput_mb_s": rows * record_bytes / seconds / 1e6, "seconds": seconds}


def cpu_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """CPU seconds that the processes of a session used between two looks; one that is new has used all of its own.

    What has ended counts for nothing: Spark ends a Python worker only when nobody has needed it for a minute.
    """
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
