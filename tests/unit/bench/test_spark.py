"""What the benchmark of the data source computes, and what its part of the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import report
from bench.harness.page import PageError
from bench.harness.ratios import OURS, Sample, compute_ratios
from bench.suites.spark import GOALS, PAGE
from bench.workloads.spark_rows import CONNECTOR, Rows, cpu_between, figures


def _results(scale: float, *workloads: str) -> dict[str, object]:
    """A run in which ours does three rows for two of the connector's, and takes twice as long for the first."""
    samples = []
    for number in (1, 2, 3):
        for system, rate in ((OURS, 300.0), (CONNECTOR, 200.0)):
            samples += [Sample(system, each, number, {"rows_s": rate * number}) for each in workloads]
            started = {"first_row_s": rate, "from_start_s": 10.0}
            samples.append(Sample(system, "first-row", number, started))
    judged_by = {**{each: ["rows_s"] for each in workloads}, "first-row": ["first_row_s", "from_start_s"]}
    return {
        "date": "2026-11-20",
        "minutes": 9.7,
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "memory_gb": 8.0,
            "kernel": "6.1",
            "system": "a system",
            "filesystem": "ext4",
        },
        "versions": {"tailrace": "1.0", "spark": "4.3.0", CONNECTOR: "4.2.0", "java": "a java", "python": "3.11"},
        "settings": {"rounds": 3, "scale": scale},
        "ratios": compute_ratios(samples, judged_by),
        "shares": [],
        "skipped": [],
        "failures": [],
        "samples": [],
    }


ALL = [f"{action}-{size}" for action in ("count", "parquet", "write") for size in ("100b", "1k")]


def test_figures_are_rows_and_bytes_a_second() -> None:
    assert figures(10_000, 100, 0.5) == {"rows_s": 20_000, "throughput_mb_s": 2.0, "seconds": 0.5}


def test_processor_time_is_that_of_all_that_run_and_new_ones_count_whole() -> None:
    assert cpu_between({1: 5.0, 2: 3.0, 3: 9.0}, {1: 6.0, 2: 3.5, 4: 0.25}) == 1.75


def test_a_share_of_the_rows_is_at_least_one() -> None:
    assert Rows("1k", 1000, 200, 50).scaled(0.1) == Rows("1k", 1000, 20, 5)
    assert Rows("1k", 1000, 2, 5).scaled(0.1).written == 1


def test_goals_say_what_is_reached_and_what_is_not() -> None:
    rows = report.goal_rows(_results(1.0, *ALL), GOALS)
    assert len(rows) == len(GOALS)
    assert rows[0] == ["count rows of 100 B, rows a second, relative to the connector", "at least 1.00", "1.50", "yes"]
    assert rows[-2] == ["first row once Spark is up, time relative to the connector", "at most 1.00", "1.50", "no"]
    assert rows[-1][-1] == "yes"


def test_the_page_shows_whole_runs_only(tmp_path: Path) -> None:
    import json

    page = tmp_path / "page.md"
    page.write_text(f"before\n{PAGE.begin}\nold\n{PAGE.end}\nafter\n")
    results = tmp_path / "spark.json"
    for part in (_results(0.1, *ALL), _results(1.0, *ALL[1:])):
        results.write_text(json.dumps(part))
        with pytest.raises(PageError, match="from a part of the run"):
            PAGE.write(results, page)
    results.write_text(json.dumps(_results(1.0, *ALL)))
    PAGE.write(results, page)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| write-1k | rows_s | kafka-connector |" in text
