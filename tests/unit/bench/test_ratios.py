"""How the benchmark evaluates its samples: medians, ratios, spreads, shares and growth."""

from __future__ import annotations

import pytest

from bench.harness.ratios import Sample, compute_ratios, compute_scaling, compute_shares, direction, spread


def _samples(system: str, workload: str, metric: str, *found: float) -> list[Sample]:
    return [Sample(system, workload, number, {metric: value}) for number, value in enumerate(found, start=1)]


def test_a_ratio_is_our_median_divided_by_the_peers() -> None:
    samples = [
        *_samples("tailrace", "produce-1k", "throughput_mb_s", 500, 600, 900),
        *_samples("kafka", "produce-1k", "throughput_mb_s", 300, 200, 250),
    ]
    assert compute_ratios(samples, {"produce-1k": ["throughput_mb_s"]}) == [
        {
            "workload": "produce-1k",
            "metric": "throughput_mb_s",
            "peer": "kafka",
            "ours": 600,
            "theirs": 250,
            "ratio": 2.4,
            "better": "higher",
            "spread": {"ours": pytest.approx(400 / 600), "theirs": pytest.approx(0.4)},
            "runs": {"ours": 3, "theirs": 3},
        }
    ]


def test_a_cost_is_better_when_lower() -> None:
    samples = [*_samples("tailrace", "w", "cpu_s_per_gb", 1.0), *_samples("kafka", "w", "cpu_s_per_gb", 4.0)]
    (ratio,) = compute_ratios(samples, {"w": ["cpu_s_per_gb"]})
    assert (ratio["ratio"], ratio["better"]) == (0.25, "lower")


def test_every_peer_that_ran_the_workload_has_a_ratio_and_no_other() -> None:
    samples = [
        *_samples("tailrace", "a", "p99_ms", 1),
        *_samples("tailrace", "b", "p99_ms", 1),
        *_samples("kafka", "a", "p99_ms", 2),
        *_samples("redis", "a", "p99_ms", 4),
        *_samples("kafka", "c", "p99_ms", 4),
    ]
    ratios = compute_ratios(samples, {name: ["p99_ms", "requests_s"] for name in "abc"})
    assert [(ratio["workload"], ratio["peer"]) for ratio in ratios] == [("a", "kafka"), ("a", "redis")]


def test_a_peer_whose_cost_the_clock_does_not_see_has_no_ratio() -> None:
    samples = [*_samples("tailrace", "w", "cpu_s_per_gb", 1.0), *_samples("redis", "w", "cpu_s_per_gb", 0.0)]
    (ratio,) = compute_ratios(samples, {"w": ["cpu_s_per_gb"]})
    assert ratio["ratio"] is None


def test_a_figure_without_a_better_side_is_refused() -> None:
    with pytest.raises(ValueError, match="resident_share"):
        direction("resident_share")


def test_a_single_run_has_no_spread() -> None:
    assert spread([3.0]) == 0.0


def test_a_share_is_of_the_lowest_limit_that_bounds_the_workload() -> None:
    samples = _samples("tailrace", "produce-1k", "throughput_mb_s", 400, 500, 600)
    limits = {"page_cache_write_mb_s": 4000.0, "loopback_mb_s": 2000.0, "fdatasync_p50_ms": 0.3}
    shares = compute_shares(samples, limits, {"produce-1k": ["page_cache_write_mb_s", "loopback_mb_s"], "other": []})
    assert shares == [
        {
            "system": "tailrace",
            "workload": "produce-1k",
            "metric": "throughput_mb_s",
            "value": 500,
            "limit": "loopback_mb_s",
            "share": 0.25,
        }
    ]


def test_growth_is_the_cost_at_the_last_point_against_the_first() -> None:
    samples = [
        *_samples("tailrace", "one", "cpu_us_per_request", 20),
        *_samples("tailrace", "thousand", "cpu_us_per_request", 23),
        *_samples("kafka", "one", "cpu_us_per_request", 90),
    ]
    assert compute_scaling(samples, {"partitions": {1: "one", 100: "hundred", 1000: "thousand"}}) == [
        {
            "system": "tailrace",
            "axis": "partitions",
            "metric": "cpu_us_per_request",
            "growth": 1.15,
            "points": {"1": 20, "1000": 23},
        }
    ]
