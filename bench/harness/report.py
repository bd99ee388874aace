"""Results as text: the sentences and tables of the summary after a run and of the generated parts of pages.

Reads only a results file, so that a page can be regenerated from an old run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bench.harness.ratios import HIGHER_IS_BETTER, LOWER_IS_BETTER, OURS, direction

Results: TypeAlias = Mapping[str, Any]

#: Smaller differences between single runs mean nothing.
LEAST_MARGIN = 0.02
#: Only in the JSON: messages a second only repeat the throughput; the other is the total of all brokers of a cluster.
_NOT_IN_TABLES = ("messages_s", "idle_all_percent")
TABLE_METRICS = tuple(name for name in (*HIGHER_IS_BETTER, *LOWER_IS_BETTER) if name not in _NOT_IN_TABLES)
HEADINGS = ["workload", "metric", "peer", "tailrace", "peer's", "ratio", "better", "tailrace is", "of limit"]
GOAL_HEADINGS = ["what", "to reach", "measured", "reached"]
ALONE_HEADINGS = ["workload", "metric", "tailrace"]


class Goal(NamedTuple):
    """A figure to reach."""

    words: str
    workload: str
    metric: str
    bound: float
    #: Whether the bound is for the ratio to the peer, or for our figure itself.
    is_ratio: bool = True


def number(value: float | None) -> str:
    """Format with three significant digits, without an exponent."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def verdict(ratio: Mapping[str, Any]) -> str:
    """Return whether ours is ahead or behind by more than the runs of either side vary, else "level"."""
    if not ratio["ratio"]:
        return "-"
    advantage = ratio["ratio"] if ratio["better"] == "higher" else 1 / ratio["ratio"]
    margin = 1 + max(LEAST_MARGIN, ratio["spread"]["ours"] / 2, ratio["spread"]["theirs"] / 2)
    return "ahead" if advantage > margin else "behind" if advantage < 1 / margin else "level"


def ratio_rows(results: Results) -> list[list[str]]:
    """Return one row of words for each ratio in the table."""
    shares = {
        (share["workload"], share["metric"]): share["share"] for share in results["shares"] if share["system"] == OURS
    }
    rows = []
    for ratio in results["ratios"]:
        if ratio["metric"] not in TABLE_METRICS:
            continue
        share = shares.get((ratio["workload"], ratio["metric"]))
        rows.append(
            [
                ratio["workload"],
                ratio["metric"],
                ratio["peer"],
                f"{number(ratio['ours'])} ±{ratio['spread']['ours'] * 50:.0f}%",
                f"{number(ratio['theirs'])} ±{ratio['spread']['theirs'] * 50:.0f}%",
                number(ratio["ratio"]),
                ratio["better"],
                verdict(ratio),
                f"{share:.0%}" if share is not None else "",
            ]
        )
    return rows


def plain_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """Format a table for a terminal."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """Format a table for a page."""
    lines = ["| " + " | ".join(row) + " |" for row in [headings, *rows]]
    lines.insert(1, "|" + "---|" * len(headings))
    return "\n".join(lines)


def limits_text(results: Results) -> str:
    """Describe the physical limits in one sentence."""
    limits = results["limits"]
    return (
        f"page-cache write {number(limits['page_cache_write_mb_s'])} MB/s, "
        f"loopback TCP {number(limits['loopback_mb_s'])} MB/s, fdatasync p50 {number(limits['fdatasync_p50_ms'])} ms"
    )


def scaling_rows(results: Results) -> list[list[str]]:
    """Return how the CPU cost of a request grows with partitions and idle connections."""
    return [
        [
            entry["system"],
            entry["axis"],
            ", ".join(f"{point}: {number(cost)}" for point, cost in entry["points"].items()),
            "-" if entry["growth"] is None else f"{entry['growth']:.2f}x",
        ]
        for entry in results["scaling"]
    ]


def summary(results: Results, goals: Sequence[Goal] = (), shows_alone: bool = False, ours: str = OURS) -> str:
    """Return the text that is printed at the end of a run."""
    # Only some suites measure the machine's limits.
    width = len(HEADINGS) if results["shares"] else len(HEADINGS) - 1
    headings = [heading.replace(OURS, ours) for heading in HEADINGS[:width]]
    tables = [
        ([row[:width] for row in ratio_rows(results)], headings),
        (alone_rows(results) if shows_alone else [], ALONE_HEADINGS),
        (goal_rows(results, goals), GOAL_HEADINGS),
    ]
    parts = [plain_table(rows, headings) for rows, headings in tables if rows]
    if "limits" in results:
        parts.append(f"limits: {limits_text(results)}")
    if results.get("scaling"):
        parts.append(plain_table(scaling_rows(results), ["system", "axis", "CPU µs a request", "growth"]))
    left_out = [
        f"{kind}: {item['system']} {item['workload']}: {item['reason']}"
        for kind in ("skipped", "failures")
        for item in results[kind]
    ]
    return "\n\n".join([*parts, *(["\n".join(left_out)] if left_out else [])])


def run_text(results: Results) -> str:
    """Say when and where it ran, as the beginning of a sentence."""
    machine = results["machine"]
    return (
        f"Run of {results['date']} ({results['minutes']:.0f} minutes, {results['settings']['rounds']} rounds) on "
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, {machine['filesystem']}, "
        f"{machine['system']}, kernel {machine['kernel']}"
    )


def page_part(results: Results, what_ran: str, blocks: Sequence[str]) -> str:
    """Return a part of a page: what ran when and where, the results, and what is missing."""
    left_out = [
        [item["system"], item["workload"], item["reason"].splitlines()[0]]
        for item in (*results["skipped"], *results["failures"])
    ]
    parts = [f"{run_text(results)}; {what_ran}.", *blocks]
    if left_out:
        parts += ["### What did not run", markdown_table(left_out, ["system", "workload", "reason"])]
    return "\n\n".join(parts)


def goal_rows(results: Results, goals: Sequence[Goal]) -> list[list[str]]:
    """Return what should be reached, what was measured, and whether it was reached."""
    ratios = {(each["workload"], each["metric"]): each for each in results["ratios"]}
    rows = []
    own = {key: statistics.median(values) for key, values in _own_values(results).items()}
    for goal in goals:
        key = (goal.workload, goal.metric)
        found = ratios.get(key, {}).get("ratio") if goal.is_ratio else own.get(key)
        if found is not None:
            is_least = direction(goal.metric) == "higher"
            is_reached = found >= goal.bound if is_least else found <= goal.bound
            wanted = f"{'at least' if is_least else 'at most'} {number(goal.bound)}"
            rows.append([goal.words, wanted, number(found), "yes" if is_reached else "no"])
    return rows


def _own_values(results: Results) -> dict[tuple[str, str], list[float]]:
    """Return our figures by workload and figure, in the order of the run."""
    found: dict[tuple[str, str], list[float]] = {}
    for sample in results["samples"]:
        if sample.get("system") == OURS:
            for metric, value in sample["metrics"].items():
                found.setdefault((sample["workload"], metric), []).append(value)
    return found


def alone_rows(results: Results) -> list[list[str]]:
    """Return the figures that only exist for tailrace."""
    compared = {(each["workload"], each["metric"]) for each in results["ratios"]}
    return [
        [workload, metric, number(statistics.median(values))]
        for (workload, metric), values in _own_values(results).items()
        if metric in TABLE_METRICS and (workload, metric) not in compared
    ]


def missed_part(results: Results, goals: Sequence[Goal]) -> str | None:
    """Return why a page must not show a run, None if the run is complete."""
    is_whole = results["settings"]["scale"] >= 1 and len(goal_rows(results, goals)) == len(goals)
    return None if is_whole else "from a part of the run; the page shows whole runs only"
