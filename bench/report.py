"""The results as text: the table after a run, and the generated part of docs/performance.md.

Reads only what is in the results file, so that a page can be written again from an old run; imports nothing of the
rest, so that it runs as a script: `python bench/report.py docs` or `python bench/report.py table`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/latest.json"
GROUP_RESULTS = ROOT / "bench/results/groups.json"
CHART = ROOT / "bench/results/latest.svg"
PAGE = ROOT / "docs/performance.md"
PAGE_CHART = ROOT / "docs/performance.svg"
BEGIN = "<!-- Generated from bench/results/latest.json by `python bench/report.py docs`: begin -->"
END = "<!-- Generated: end -->"
GROUP_BEGIN = "<!-- Generated from bench/results/groups.json by `python bench/report.py docs`: begin -->"
GROUP_END = "<!-- Generated from bench/results/groups.json: end -->"

#: Below this, a single run on each side says nothing.
LEAST_MARGIN = 0.02
#: Messages a second only restate the throughput and are left to the JSON.
TABLE_METRICS = (
    "throughput_mb_s",
    "requests_s",
    "slowest_consumer_mb_s",
    "cpu_s_per_gb",
    "cpu_s_per_million",
    "cpu_us_per_request",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "first_ack_s",
    "failover_s",
    "takeover_s",
    "settled_s",
    "restart_s",
    "kept_pause_ms",
    "longest_gap_ms",
    "typical_gap_ms",
    "rss_mb",
)


class ReportError(Exception):
    """The results or the page are not what a report can be written from."""


def number(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def verdict(ratio: Mapping[str, Any]) -> str:
    """Whether ours is ahead or behind by more than the runs of either side differ among themselves, else "level"."""
    if not ratio["ratio"]:
        return "-"
    advantage = ratio["ratio"] if ratio["better"] == "higher" else 1 / ratio["ratio"]
    margin = 1 + max(LEAST_MARGIN, ratio["spread"]["ours"] / 2, ratio["spread"]["theirs"] / 2)
    return "ahead" if advantage > margin else "behind" if advantage < 1 / margin else "level"


def ratio_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """One row for each ratio in the table, words only."""
    shares = {
        (share["workload"], share["metric"]): share["share"]
        for share in results["shares"]
        if share["system"] == "tailrace"
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


HEADINGS = ["workload", "metric", "peer", "tailrace", "peer's", "ratio", "better", "tailrace is", "of limit"]


def plain_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """A table for a terminal."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """The same for a page."""
    lines = ["| " + " | ".join(row) + " |" for row in [headings, *rows]]
    lines.insert(1, "|" + "---|" * len(headings))
    return "\n".join(lines)


def limits_text(results: Mapping[str, Any]) -> str:
    """The physical limits in one sentence."""
    limits = results["limits"]
    return (
        f"page-cache write {number(limits['page_cache_write_mb_s'])} MB/s, "
        f"loopback TCP {number(limits['loopback_mb_s'])} MB/s, fdatasync p50 {number(limits['fdatasync_p50_ms'])} ms"
    )


def scaling_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """How the CPU cost of a request grows with partitions and idle connections."""
    return [
        [
            entry["system"],
            entry["axis"],
            ", ".join(f"{point}: {number(cost)}" for point, cost in entry["points"].items()),
            "-" if entry["growth"] is None else f"{entry['growth']:.2f}x",
        ]
        for entry in results["scaling"]
    ]


def summary(results: Mapping[str, Any]) -> str:
    """What is printed at the end of a run."""
    parts = [plain_table(ratio_rows(results), HEADINGS), "", f"limits: {limits_text(results)}"]
    if results["scaling"]:
        headings = ["system", "axis", "CPU µs a request", "growth"]
        parts += ["", plain_table(scaling_rows(results), headings)]
    for kind in ("skipped", "failures"):
        parts += [f"{kind}: {item['system']} {item['workload']}: {item['reason']}" for item in results[kind]]
    return "\n".join(parts)


def run_text(results: Mapping[str, Any]) -> str:
    """When and on what it ran, as the beginning of a sentence."""
    machine = results["machine"]
    return (
        f"Run of {results['date']} ({results['minutes']:.0f} minutes, {results['settings']['rounds']} rounds) on "
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, {machine['filesystem']}, "
        f"{machine['system']}, kernel {machine['kernel']}"
    )


def group_part(results: Mapping[str, Any]) -> str:
    """The part of the page that a run of the consumer groups' workloads writes."""
    versions = results["versions"]
    # How the servers start is in the full run.
    rows = [row[:-1] for row in ratio_rows(results) if row[0] != "start"]
    parts = [
        f"{run_text(results)}; tailrace {versions['tailrace']}, Kafka {versions['kafka']}.",
        "",
        markdown_table(rows, HEADINGS[:-1]),
    ]
    return "\n".join([*parts, *_left_out(results)])


def _left_out(results: Mapping[str, Any]) -> list[str]:
    left_out = [*results["skipped"], *results["failures"]]
    if not left_out:
        return []
    rows = [[item["system"], item["workload"], item["reason"].splitlines()[0]] for item in left_out]
    return ["", "### What did not run", "", markdown_table(rows, ["system", "workload", "reason"])]


def generated_part(results: Mapping[str, Any]) -> str:
    """The part of the page that a run writes."""
    versions = results["versions"]
    durability = [
        [name, versions[name], settings["durability"], settings["client"]]
        for name, settings in results["settings"]["systems"].items()
        if name in versions
    ]
    parts = [
        f"{run_text(results)}; librdkafka {versions['librdkafka']}, Python {versions['python']}.",
        "",
        f"Physical limits in the same run: {limits_text(results)}.",
        "",
        "![How many times better tailrace is, for each workload and peer](performance.svg)",
        "",
        markdown_table(ratio_rows(results), HEADINGS),
        "",
        "### Cost of a request as the broker fills",
        "",
        markdown_table(scaling_rows(results), ["system", "axis", "CPU µs a request at each point", "growth"]),
        "",
        "### What was compared",
        "",
        markdown_table(durability, ["system", "version", "durability", "client"]),
    ]
    return "\n".join([*parts, *_left_out(results)])


def replace_generated(page: str, generated: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with a generated part exchanged; what people wrote around it stays."""
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ReportError("the page has no generated part, or more than one")
    head, rest = page.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n\n{generated}\n\n{end}{tail}"


def write_docs(results_path: Path = RESULTS, page_path: Path = PAGE) -> None:
    """Write the generated part of the page from the last full run."""
    results = json.loads(results_path.read_text())
    if results["mode"] != "full":
        raise ReportError(f"{results_path.name} is from a {results['mode']} run; the page shows full runs only")
    page_path.write_text(replace_generated(page_path.read_text(), generated_part(results)))
    chart = results_path.with_suffix(".svg")
    shutil.copyfile(chart, page_path.with_suffix(".svg"))


def write_group_docs(results_path: Path = GROUP_RESULTS, page_path: Path = PAGE) -> None:
    """Write the consumer groups' part of the page from their last whole run."""
    results = json.loads(results_path.read_text())
    if results["settings"]["scale"] < 1:
        raise ReportError(f"{results_path.name} is from a run with a part of the load; the page shows whole runs only")
    page_path.write_text(replace_generated(page_path.read_text(), group_part(results), GROUP_BEGIN, GROUP_END))


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["docs"]:
        try:
            write_docs()
            if GROUP_RESULTS.exists():
                write_group_docs()
        except (ReportError, FileNotFoundError) as error:
            print(f"report: {error}", file=sys.stderr)
            return 1
        return 0
    if list(arguments) == ["table"]:
        print(summary(json.loads(RESULTS.read_text())))
        return 0
    print("usage: report.py docs|table", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
