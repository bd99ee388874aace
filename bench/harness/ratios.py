"""From samples to ratios: medians, spreads, ours against each peer, shares of the physical limits.

Pure functions over plain data. A ratio is always ours divided by theirs; `better` says which side of 1 is good.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "tailrace"

HIGHER_IS_BETTER = ("throughput_mb_s", "rows_s", "records_s", "messages_s", "requests_s", "slowest_consumer_mb_s")
LOWER_IS_BETTER = (
    "cpu_s_per_gb",
    "cpu_s_per_million",
    "cpu_us_per_request",
    "cpu_us_per_record",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "rss_mb",
    "first_ack_s",
    "failover_s",
    "takeover_s",
    "settled_s",
    "restart_s",
    "kept_pause_ms",
    "longest_gap_ms",
    "typical_gap_ms",
    "client_failover_s",
    "create_s",
    "idle_percent",
    "idle_all_percent",
    "broker_rss_mb",
    "outage_s",
    "moved_s",
    "load_s",
    "ready_s",
    "in_sync_s",
    "stop_s",
    "first_row_s",
    "from_start_s",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one workload on one system."""

    system: str
    workload: str
    round: int
    metrics: Mapping[str, float]


def direction(metric: str) -> str:
    """Return whether more or less of a figure is better."""
    if metric in HIGHER_IS_BETTER:
        return "higher"
    if metric in LOWER_IS_BETTER:
        return "lower"
    raise ValueError(f"{metric} has no better side: add it to HIGHER_IS_BETTER or LOWER_IS_BETTER")


def has_better_side(metric: str) -> bool:
    """True if systems can be compared by a figure."""
    return metric in HIGHER_IS_BETTER or metric in LOWER_IS_BETTER


def values(samples: Iterable[Sample], system: str, workload: str, metric: str) -> list[float]:
    """Return one figure of all runs of a workload on a system."""
    return [
        sample.metrics[metric]
        for sample in samples
        if sample.system == system and sample.workload == workload and metric in sample.metrics
    ]


def spread(found: Sequence[float]) -> float:
    """Return the distance between the extremes as a share of the median; 0 for a single value."""
    middle = statistics.median(found)
    return (max(found) - min(found)) / middle if middle else 0.0


def compute_ratios(
    samples: Sequence[Sample], judged_by: Mapping[str, Sequence[str]], ours_is: str | None = OURS
) -> list[dict[str, Any]]:
    """Compare ours with every peer that ran the same workload, by medians, in the order of `judged_by`."""
    if ours_is is None:
        return []
    peers = list(dict.fromkeys(sample.system for sample in samples if sample.system != ours_is))
    ratios: list[dict[str, Any]] = []
    for workload, metrics in judged_by.items():
        for metric in metrics:
            ours = values(samples, ours_is, workload, metric)
            for peer in peers:
                theirs = values(samples, peer, workload, metric)
                if not ours or not theirs:
                    continue
                ratios.append(_ratio(workload, metric, peer, ours, theirs))
    return ratios


def _ratio(workload: str, metric: str, peer: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    our_median, their_median = statistics.median(ours), statistics.median(theirs)
    return {
        "workload": workload,
        "metric": metric,
        "peer": peer,
        "ours": our_median,
        "theirs": their_median,
        # A figure too small to measure has no ratio.
        "ratio": our_median / their_median if their_median else None,
        "better": direction(metric),
        "spread": {"ours": spread(ours), "theirs": spread(theirs)},
        "runs": {"ours": len(ours), "theirs": len(theirs)},
    }


def compute_shares(
    samples: Sequence[Sample], limits: Mapping[str, float], bounded_by: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return each throughput as a share of the lowest physical limit that bounds it."""
    shares: list[dict[str, Any]] = []
    for workload, names in bounded_by.items():
        if not names:
            continue
        limit = min(names, key=lambda name: limits[name])
        for system in dict.fromkeys(sample.system for sample in samples):
            found = values(samples, system, workload, "throughput_mb_s")
            if found:
                median = statistics.median(found)
                shares.append(
                    {
                        "system": system,
                        "workload": workload,
                        "metric": "throughput_mb_s",
                        "value": median,
                        "limit": limit,
                        "share": median / limits[limit],
                    }
                )
    return shares


def compute_scaling(samples: Sequence[Sample], axes: Mapping[str, Mapping[int, str]]) -> list[dict[str, Any]]:
    """Return how the cost of a request grows along each axis, which maps its points to workloads."""
    scaling: list[dict[str, Any]] = []
    for system in dict.fromkeys(sample.system for sample in samples):
        for axis, points in axes.items():
            costs = {
                point: statistics.median(found)
                for point, workload in points.items()
                if (found := values(samples, system, workload, "cpu_us_per_request"))
            }
            if len(costs) < 2:
                continue
            first, last = min(costs), max(costs)
            growth = costs[last] / costs[first] if costs[first] else None
            entry = {"system": system, "axis": axis, "metric": "cpu_us_per_request", "growth": growth}
            scaling.append({**entry, "points": {str(point): cost for point, cost in costs.items()}})
    return scaling
