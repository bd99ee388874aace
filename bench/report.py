"""The results as text: the table after a run, and the generated part of docs/performance.md.

Reads only what is in the results file, so that a page can be written again from an old run; imports nothing of the
rest, so that it runs as a script: `python bench/report.py docs` or `python bench/report.py table`.
"""

from __future__ import annotations

import json
import shutil
import statistics
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
CLUSTER_RESULTS = ROOT / "bench/results/cluster.json"
CLUSTER_BEGIN = "<!-- Generated from bench/results/cluster.json by `python bench/report.py docs`: begin -->"
CLUSTER_END = "<!-- Generated from bench/results/cluster.json: end -->"
SPARK_RESULTS = ROOT / "bench/results/spark.json"
SPARK_BEGIN = "<!-- Generated from bench/results/spark.json by `python bench/report.py docs`: begin -->"
SPARK_END = "<!-- Generated from bench/results/spark.json: end -->"

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
    "client_failover_s",
    "create_s",
    "idle_percent",
    "outage_s",
    "moved_s",
    "load_s",
    "ready_s",
    "in_sync_s",
    "stop_s",
    "broker_rss_mb",
    "rss_mb",
    "rows_s",
    "first_row_s",
    "from_start_s",
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


# --- three brokers


#: What a cluster is to reach: in words, of which workload and figure, its bound, and whether that is for the ratio.
CLUSTER_GOALS: Sequence[tuple[str, str, str, float, bool]] = (
    ("throughput of 1 KB messages, of Kafka's", "produce-1k-acks-all", "throughput_mb_s", 1.0, True),
    ("throughput of 100 B messages, of Kafka's", "produce-100b-acks-all", "throughput_mb_s", 1.0, True),
    ("from the death of a leader to the next write, of Kafka's", "leader-killed", "failover_s", 1.0, True),
    ("a new controller loads 10,000 partitions, s", "controller-killed-10000-partitions", "load_s", 5.0, False),
    ("1,000 leaders of a dead broker moved, s", "lose-1000-leaders", "moved_s", 5.0, False),
    ("a broker that idles with 1,000 partitions, % of a core", "idle-1000-partitions", "idle_percent", 3.0, False),
)


Goals = Sequence[tuple[str, str, str, float, bool]]


def goal_rows(results: Mapping[str, Any], goals: Goals = CLUSTER_GOALS) -> list[list[str]]:
    """What is to be reached, what was measured, and whether it is."""
    ratios = {(each["workload"], each["metric"]): each for each in results["ratios"]}
    rows = []
    for words, workload, metric, bound, is_ratio in goals:
        if is_ratio:
            ratio = ratios.get((workload, metric))
            found, better = (None, "") if ratio is None else (ratio["ratio"], ratio["better"])
        else:
            found, better = _own_median(results, workload, metric), "lower"
        wanted = f"{'at least' if better == 'higher' else 'at most'} {number(bound)}"
        if found is not None:
            is_reached = found >= bound if better == "higher" else found <= bound
            rows.append([words, wanted, number(found), "yes" if is_reached else "no"])
    return rows


def _own_median(results: Mapping[str, Any], workload: str, metric: str) -> float | None:
    found = _own_values(results).get((workload, metric))
    return None if found is None else statistics.median(found)


def _own_values(results: Mapping[str, Any]) -> dict[tuple[str, str], list[float]]:
    """Ours by workload and figure, in the order of the run."""
    found: dict[tuple[str, str], list[float]] = {}
    for sample in results["samples"]:
        if sample["system"] == "tailrace":
            for metric, value in sample["metrics"].items():
                found.setdefault((sample["workload"], metric), []).append(value)
    return found


def alone_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """What only tailrace was measured by."""
    compared = {(each["workload"], each["metric"]) for each in results["ratios"]}
    return [
        [workload, metric, number(statistics.median(values))]
        for (workload, metric), values in _own_values(results).items()
        if metric in TABLE_METRICS and (workload, metric) not in compared
    ]


GOAL_HEADINGS = ["what", "to reach", "measured", "reached"]
ALONE_HEADINGS = ["workload", "metric", "tailrace"]


def cluster_summary(results: Mapping[str, Any]) -> str:
    """What is printed at the end of a run of three brokers."""
    rows = [row[:-1] for row in ratio_rows(results)]
    parts = [plain_table(rows, HEADINGS[:-1])] if rows else []
    for found, headings in ((alone_rows(results), ALONE_HEADINGS), (goal_rows(results), GOAL_HEADINGS)):
        if found:
            parts.append(plain_table(found, headings))
    parts += [f"failed: {item['system']} {item['workload']}: {item['reason']}" for item in results["failures"]]
    return "\n\n".join(parts)


def cluster_part(results: Mapping[str, Any]) -> str:
    """The part of the page that a run of three brokers writes."""
    versions, settings = results["versions"], results["settings"]
    parts = [
        f"{run_text(results)}; tailrace {versions['tailrace']} with etcd {versions['etcd']}, "
        f"Kafka {versions['kafka']}; {settings['rounds'] * settings['kills']} leaders killed on each side.",
        "",
        markdown_table(goal_rows(results), GOAL_HEADINGS),
        "",
        markdown_table([row[:-1] for row in ratio_rows(results)], HEADINGS[:-1]),
        "",
        "Of tailrace alone:",
        "",
        markdown_table(alone_rows(results), ALONE_HEADINGS),
    ]
    return "\n".join([*parts, *_left_out(results)])


def is_whole_cluster_run(results: Mapping[str, Any]) -> bool:
    """Whether a run had the full load and every part, with Kafka beside it."""
    return results["settings"]["scale"] >= 1 and len(goal_rows(results)) == len(CLUSTER_GOALS)


def write_cluster_docs(results_path: Path = CLUSTER_RESULTS, page_path: Path = PAGE) -> None:
    """Write the part of the page about three brokers from their last whole run."""
    results = json.loads(results_path.read_text())
    if not is_whole_cluster_run(results):
        raise ReportError(f"{results_path.name} is from a part of the run; the page shows whole runs only")
    page_path.write_text(replace_generated(page_path.read_text(), cluster_part(results), CLUSTER_BEGIN, CLUSTER_END))


# --- Spark


#: What the data source is to reach beside Spark's Kafka connector, as ratios.
SPARK_GOALS: Goals = (
    *(
        (f"{words} {size}, rows a second, of the connector's", f"{action}-{name}", "rows_s", 1.0, True)
        for action, words in (
            ("count", "count rows of"),
            ("parquet", "to Parquet, rows of"),
            ("write", "write rows of"),
        )
        for name, size in (("100b", "100 B"), ("1k", "1 KB"))
    ),
    ("first row once Spark is up, of the connector's time", "first-row", "first_row_s", 1.0, True),
    ("first row since the process was started, of the connector's time", "first-row", "from_start_s", 1.0, True),
)


def spark_summary(results: Mapping[str, Any]) -> str:
    """What is printed at the end of a run of the data source."""
    parts = [plain_table([row[:-1] for row in ratio_rows(results)], HEADINGS[:-1])]
    if goals := goal_rows(results, SPARK_GOALS):
        parts.append(plain_table(goals, GOAL_HEADINGS))
    parts += [f"failed: {item['system']} {item['workload']}: {item['reason']}" for item in results["failures"]]
    return "\n\n".join(parts)


def spark_part(results: Mapping[str, Any]) -> str:
    """The part of the page that a run of the data source writes."""
    versions = results["versions"]
    parts = [
        f"{run_text(results)}; tailrace {versions['tailrace']}, Spark {versions['spark']} with its Kafka connector "
        f"{versions['kafka-connector']}, {versions['java']}, Python {versions['python']}.",
        "",
        markdown_table(goal_rows(results, SPARK_GOALS), GOAL_HEADINGS),
        "",
        markdown_table([row[:-1] for row in ratio_rows(results)], HEADINGS[:-1]),
    ]
    return "\n".join([*parts, *_left_out(results)])


def is_whole_spark_run(results: Mapping[str, Any]) -> bool:
    """Whether a run had all rows and every part."""
    return results["settings"]["scale"] >= 1 and len(goal_rows(results, SPARK_GOALS)) == len(SPARK_GOALS)


def write_spark_docs(results_path: Path = SPARK_RESULTS, page_path: Path = PAGE) -> None:
    """Write the part of the page about Spark from its last whole run."""
    results = json.loads(results_path.read_text())
    if not is_whole_spark_run(results):
        raise ReportError(f"{results_path.name} is from a part of the run; the page shows whole runs only")
    page_path.write_text(replace_generated(page_path.read_text(), spark_part(results), SPARK_BEGIN, SPARK_END))


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
            if CLUSTER_RESULTS.exists():
                write_cluster_docs()
            if SPARK_RESULTS.exists():
                write_spark_docs()
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
