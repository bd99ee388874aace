"""The places of installed programs, results and data of the benchmarks."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Files from `scripts/setup-bench`.
CACHE = ROOT / ".cache/bench"
#: The C clients.
BUILD = ROOT / "build/bench"
RESULTS = ROOT / "bench/results"
#: The default place for all data of a run.
SCRATCH = ROOT / "build/bench-data"
PERFORMANCE_PAGE = ROOT / "docs/performance.md"
TUNING_PAGE = ROOT / "docs/tuning.md"


def connector_jars() -> list[Path]:
    """Return the jars of Spark's own Kafka connector that `scripts/setup-clients` copied for the installed pyspark."""
    return sorted((ROOT / ".cache/spark-kafka" / version("pyspark") / "lib").glob("*.jar"))
