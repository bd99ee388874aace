"""The results as text and as a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.harness import chart, report
from bench.harness.page import PageError
from bench.suites import NAMES, cluster, command, peers


def _ratio(workload: str, metric: str, ours: float, theirs: float, better: str, peer: str = "kafka") -> dict[str, Any]:
    return {
        "workload": workload,
        "metric": metric,
        "peer": peer,
        "ours": ours,
        "theirs": theirs,
        "ratio": ours / theirs,
        "better": better,
        "spread": {"ours": 0.1, "theirs": 0.2},
        "runs": {"ours": 3, "theirs": 3},
    }


@pytest.fixture
def results() -> dict[str, Any]:
    return {
        "mode": "full",
        "date": "2030-01-02",
        "minutes": 41.2,
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "memory_gb": 8.0,
            "kernel": "6.1",
            "system": "Debian",
            "filesystem": "ext4",
        },
        "versions": {"tailrace": "0.1", "kafka": "4.1.0", "librdkafka": "2.0.2", "python": "3.11.7"},
        "settings": {
            "rounds": 3,
            "systems": {
                "tailrace": {"durability": "page cache", "client": "rdbench"},
                "kafka": {"durability": "page cache too", "client": "rdbench"},
                "redis": {"durability": "everysec", "client": "redisbench"},
            },
        },
        "limits": {"page_cache_write_mb_s": 4000.0, "loopback_mb_s": 2000.0, "fdatasync_p50_ms": 0.31},
        "ratios": [
            _ratio("produce-1k", "throughput_mb_s", 600, 300, "higher"),
            _ratio("produce-1k", "cpu_s_per_gb", 0.7, 2.8, "lower"),
            _ratio("latency-1k-per-s", "p99_ms", 3, 2, "lower"),
        ],
        "shares": [
            {
                "system": "tailrace",
                "workload": "produce-1k",
                "metric": "throughput_mb_s",
                "value": 600,
                "limit": "loopback_mb_s",
                "share": 0.3,
            }
        ],
        "scaling": [
            {
                "system": "tailrace",
                "axis": "partitions",
                "metric": "cpu_us_per_request",
                "growth": 1.15,
                "points": {"1": 20.0, "1000": 23.0},
            }
        ],
        "skipped": [{"system": "redis", "workload": "all", "reason": "not installed"}],
        "failures": [],
        "samples": [],
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0314, "0.031"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (51234.5, "51,234"), (None, "-")],
)
def test_a_number_shows_about_three_digits(value: float | None, text: str) -> None:
    assert report.number(value) == text


def test_the_verdict_follows_the_better_side() -> None:
    assert report.verdict(_ratio("w", "throughput_mb_s", 3, 2, "higher")) == "ahead"
    assert report.verdict(_ratio("w", "p99_ms", 3, 2, "lower")) == "behind"
    assert report.verdict(_ratio("w", "p99_ms", 100, 101, "lower")) == "level"
    assert report.verdict({**_ratio("w", "p99_ms", 1, 1, "lower"), "ratio": None}) == "-"


def test_a_difference_within_the_spread_of_either_side_is_level() -> None:
    close = _ratio("w", "throughput_mb_s", 120, 100, "higher")
    assert report.verdict(close) == "ahead"
    assert report.verdict({**close, "spread": {"ours": 0.1, "theirs": 0.5}}) == "level"
    assert report.verdict({**close, "ratio": 0.85, "spread": {"ours": 0.5, "theirs": 0.1}}) == "level"


def test_the_summary_shows_every_ratio_the_limits_the_growth_and_what_was_left_out(results: dict[str, Any]) -> None:
    text = report.summary(results)
    line = next(line for line in text.splitlines() if line.startswith("produce-1k") and "throughput" in line)
    assert " ".join(line.split()) == "produce-1k throughput_mb_s kafka 600 ±5% 300 ±10% 2.00 higher ahead 30%"
    assert "loopback TCP 2,000 MB/s" in text
    assert "1.15x" in text
    assert "skipped: redis all: not installed" in text


def test_the_page_keeps_what_people_wrote_around_the_generated_part(results: dict[str, Any], tmp_path: Path) -> None:
    source, page = tmp_path / "latest.json", tmp_path / "performance.md"
    source.write_text(json.dumps(results))
    source.with_suffix(".svg").write_text("<svg/>")
    page.write_text(f"# Before\n\n{peers.PAGE.begin}\nold figures\n{peers.PAGE.end}\n\n## After\n")
    peers.PAGE.write(source, page)
    peers.PAGE.write(source, page)
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("## After\n")
    assert "old figures" not in text
    assert text.count("| produce-1k | throughput_mb_s | kafka |") == 1
    assert "| kafka | 4.1.0 | page cache too | rdbench |" in text
    assert "| redis | all | not installed |" in text
    assert page.with_suffix(".svg").read_text() == "<svg/>"


def test_the_page_shows_full_runs_only(results: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "latest.json"
    source.write_text(json.dumps({**results, "mode": "quick"}))
    with pytest.raises(PageError, match="quick"):
        peers.PAGE.write(source, tmp_path / "performance.md")


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(PageError):
        peers.PAGE.replaced("# Page\n", "figures")


def test_the_real_pages_have_one_part_of_each_kind_and_it_is_of_the_last_results_to_be_shown() -> None:
    parts = [part for name in NAMES for part in command(name).pages]
    assert len(parts) == 5
    for part in parts:
        page, last = part.page.read_text(), json.loads(part.results.read_text())
        assert part.refusal(last) or part.replaced(page, part.text(last)) == page, "run python -m bench docs"
        assert "figures" in part.replaced(page, "figures")


def test_the_groups_part_is_written_beside_the_other_and_leaves_it_alone(
    results: dict[str, Any], tmp_path: Path
) -> None:
    ours = [
        _ratio("start", "first_ack_s", 0.3, 3, "lower"),
        _ratio("group-kill-eager", "takeover_s", 6, 6.5, "lower"),
        _ratio("commits-1000-groups", "requests_s", 6000, 5000, "higher"),
    ]
    failure = {"system": "kafka", "workload": "group-join-eager", "reason": "it\nfell", "round": 1}
    settings = {**results["settings"], "scale": 1.0}
    source, page = tmp_path / "groups.json", tmp_path / "performance.md"
    source.write_text(
        json.dumps({**results, "mode": "part", "settings": settings, "ratios": ours, "failures": [failure]})
    )
    page.write_text(
        f"{peers.PAGE.begin}\nthe full run\n{peers.PAGE.end}\n\n"
        f"{peers.GROUP_PAGE.begin}\nold\n{peers.GROUP_PAGE.end}\nend\n"
    )
    peers.GROUP_PAGE.write(source, page)
    peers.GROUP_PAGE.write(source, page)
    text = page.read_text()
    assert text.startswith(f"{peers.PAGE.begin}\nthe full run\n{peers.PAGE.end}\n")
    assert text.endswith(f"{peers.GROUP_PAGE.end}\nend\n")
    assert "old" not in text
    assert text.count("| group-kill-eager | takeover_s | kafka | 6.00 ±5% | 6.50 ±10% | 0.923 | lower | level |") == 1
    assert "| commits-1000-groups | requests_s | kafka |" in text
    assert "first_ack_s" not in text
    assert "| kafka | group-join-eager | it |" in text


def test_the_page_shows_whole_runs_of_the_groups_only(results: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "groups.json"
    source.write_text(json.dumps({**results, "settings": {**results["settings"], "scale": 0.05}}))
    with pytest.raises(PageError, match="part of the load"):
        peers.GROUP_PAGE.write(source, tmp_path / "performance.md")


@pytest.fixture
def cluster_results(results: dict[str, Any]) -> dict[str, Any]:
    """A whole run of three brokers, in which one goal is missed."""

    def ours(workload: str, **metrics: float) -> dict[str, Any]:
        return {"system": "tailrace", "workload": workload, "round": 1, "metrics": metrics}

    return {
        **results,
        "versions": {**results["versions"], "etcd": "3.4.23"},
        "settings": {"rounds": 3, "kills": 5, "scale": 1.0},
        "shares": [],
        "skipped": [],
        "ratios": [
            _ratio("produce-1k-acks-all", "throughput_mb_s", 300, 200, "higher"),
            _ratio("produce-100b-acks-all", "throughput_mb_s", 90, 100, "higher"),
            _ratio("leader-killed", "failover_s", 5, 6, "lower"),
            _ratio("idle-1000-partitions", "idle_percent", 1.5, 6, "lower"),
        ],
        "samples": [
            ours("idle-1000-partitions", idle_percent=1.5),
            ours("lose-1000-leaders", moved_s=0.5, outage_s=6.0, leaders=1000),
            ours("lose-1000-leaders", moved_s=0.7, outage_s=6.2, leaders=1000),
            ours("controller-killed-10000-partitions", load_s=0.25),
            {"system": "kafka", "workload": "lose-1000-leaders", "round": 1, "metrics": {"moved_s": 9.0}},
        ],
    }


def test_what_a_cluster_is_to_reach_is_said_with_what_it_reached(cluster_results: dict[str, Any]) -> None:
    assert [row[1:] for row in report.goal_rows(cluster_results, cluster.GOALS)] == [
        ["at least 1.00", "1.50", "yes"],
        ["at least 1.00", "0.900", "no"],
        ["at most 1.00", "0.833", "yes"],
        ["at most 5.00", "0.250", "yes"],
        ["at most 5.00", "0.600", "yes"],
        ["at most 3.00", "1.50", "yes"],
    ]


def test_figures_without_a_peer_are_shown_apart_from_the_ratios(cluster_results: dict[str, Any]) -> None:
    assert report.alone_rows(cluster_results) == [
        ["lose-1000-leaders", "moved_s", "0.600"],
        ["lose-1000-leaders", "outage_s", "6.10"],
        ["controller-killed-10000-partitions", "load_s", "0.250"],
    ]
    assert "leader-killed" in report.summary(cluster_results, cluster.GOALS, shows_alone=True)


def test_the_part_about_three_brokers_is_written_from_a_whole_run_only(
    cluster_results: dict[str, Any], tmp_path: Path
) -> None:
    source, page = tmp_path / "cluster.json", tmp_path / "performance.md"
    page.write_text(f"before\n{cluster.PAGE.begin}\nold\n{cluster.PAGE.end}\nafter\n")
    for part in (
        {**cluster_results, "settings": {"rounds": 3, "kills": 5, "scale": 0.5}},
        {**cluster_results, "ratios": cluster_results["ratios"][1:]},
    ):
        source.write_text(json.dumps(part))
        with pytest.raises(PageError, match="whole runs only"):
            cluster.PAGE.write(source, page)
    source.write_text(json.dumps(cluster_results))
    cluster.PAGE.write(source, page)
    cluster.PAGE.write(source, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "tailrace 0.1 with etcd 3.4.23, Kafka 4.1.0; 15 leaders killed on each side." in text
    assert text.count("| leader-killed | failover_s | kafka | 5.00 ±5% | 6.00 ±10% | 0.833 | lower | ahead |") == 1


def test_the_chart_is_well_formed_and_has_a_bar_for_each_charted_ratio(results: dict[str, Any]) -> None:
    drawn = [
        *results["ratios"],
        _ratio("start", "rss_mb", 40, 400, "lower"),
        _ratio("produce-1k", "rss_mb", 40, 400, "lower"),
        _ratio("produce-1k", "throughput_mb_s", 600, 100, "higher", "<redis>"),
    ]
    root = ElementTree.fromstring(chart.render(drawn, "a < b"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "a < b"
    assert [text for text in texts if text in ("2.00x", "6.00x", "4.00x", "0.67x", "10.00x")] == [
        "2.00x",
        "6.00x",
        "4.00x",
        "0.67x",
        "10.00x",
    ]
    assert "against <redis>" in texts


def test_a_bar_starts_at_one_and_points_to_the_better_side(results: dict[str, Any]) -> None:
    ahead, behind = _ratio("w", "p99_ms", 1, 2, "lower"), _ratio("w", "p99_ms", 2, 1, "lower")
    assert chart.advantage(ahead) == 2.0
    assert chart.advantage(behind) == 0.5


@pytest.mark.parametrize("value", [None, 0.0, -0.2])
def test_a_ratio_that_a_logarithm_cannot_show_is_not_drawn(value: float | None) -> None:
    assert chart.rows([{**_ratio("w", "p99_ms", 1, 2, "lower"), "ratio": value}]) == {}
    ElementTree.fromstring(chart.render([{**_ratio("w", "p99_ms", 1, 2, "lower"), "ratio": value}], "nothing"))
