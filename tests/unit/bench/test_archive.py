"""How the archive benchmarks evaluate their samples."""

from __future__ import annotations

from functools import partial

from bench.harness import report
from bench.harness.ratios import Sample
from bench.suites.archive import GOALS
from bench.suites.archive_reads import medians


def test_the_median_of_each_size_is_held_against_its_goal() -> None:
    samples = [
        {"system": "tailrace", "workload": name, "metrics": {"throughput_mb_s": figure, "rows_s": figure * 10_000}}
        for name in ("1k", "100b")
        for figure in (60.0, 210.0, 90.0)
    ]
    rows = partial(report.goal_rows, goals=GOALS)
    assert [row[1:] for row in rows({"ratios": [], "samples": samples})] == [
        ["at least 200", "90.0", "no"],
        ["at least 700,000", "900,000", "yes"],
    ]
    assert rows({"ratios": [], "samples": []}) == []


def test_the_archive_is_held_against_nothing_where_that_was_measured_else_against_the_log() -> None:
    samples = [
        *(Sample("log", "catch-up-100b", 1, {"throughput_mb_s": figure}) for figure in (300.0, 500.0, 400.0)),
        Sample("archive", "catch-up-100b", 1, {"throughput_mb_s": 100.0}),
        *(Sample(source, "live-beside", 1, {"p99_ms": figure}) for source, figure in (("nothing", 2.0), ("log", 8.0))),
        Sample("archive", "live-beside", 1, {"p99_ms": 3.0}),
    ]
    found = medians(samples)
    assert found["catch-up-100b"] == {
        "log": {"throughput_mb_s": 400.0},
        "archive": {"throughput_mb_s": 100.0},
        "archive_to_log": {"throughput_mb_s": 0.25},
    }
    assert found["live-beside"]["archive_to_nothing"] == {"p99_ms": 1.5}


def test_a_source_that_failed_has_no_ratio() -> None:
    assert medians([Sample("log", "w", 1, {"p50_ms": 1.0})]) == {"w": {"log": {"p50_ms": 1.0}, "archive_to_log": {}}}
