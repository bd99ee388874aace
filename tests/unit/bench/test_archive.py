"""What the benchmark of archiving says at its end."""

from __future__ import annotations

from bench.archive import summary


def test_the_median_of_each_size_is_held_against_its_goal() -> None:
    samples = [
        {"workload": name, "metrics": {"throughput_mb_s": figure, "rows_s": figure * 10_000}}
        for name in ("1k", "100b")
        for figure in (60.0, 210.0, 90.0)
    ]
    failures = [{"workload": "1k", "reason": "exit code 1, 0 rows"}]
    assert summary({"samples": samples, "failures": failures}).splitlines() == [
        "1k throughput_mb_s: median 90 of 3, goal 200 missed",
        "100b rows_s: median 900,000 of 3, goal 700,000 reached",
        "failed: 1k: exit code 1, 0 rows",
    ]
    assert summary({"samples": [], "failures": []}) == ""
