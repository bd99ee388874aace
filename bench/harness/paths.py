"""The places of installed programs, results and data of the benchmarks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Files from `scripts/setup-bench`.
CACHE = ROOT / ".cache/bench"
#: The C clients.
BUILD = ROOT / "build/bench"
#: The jars of Spark's own Kafka connector.
CONNECTOR_JARS = ROOT / ".cache/spark-kafka/lib"
RESULTS = ROOT / "bench/results"
#: The default place for all data of a run.
SCRATCH = ROOT / "build/bench-data"
PERFORMANCE_PAGE = ROOT / "docs/performance.md"
TUNING_PAGE = ROOT / "docs/tuning.md"
