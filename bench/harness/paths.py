"""Where the benchmarks find what was set up for them, and where their results and data go."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What `scripts/setup-bench` brought.
CACHE = ROOT / ".cache/bench"
#: The C clients.
BUILD = ROOT / "build/bench"
#: What Spark's own Kafka connector consists of.
CONNECTOR_JARS = ROOT / ".cache/spark-kafka/lib"
RESULTS = ROOT / "bench/results"
#: All data of a run, unless told otherwise.
SCRATCH = ROOT / "build/bench-data"
PERFORMANCE_PAGE = ROOT / "docs/performance.md"
TUNING_PAGE = ROOT / "docs/tuning.md"
