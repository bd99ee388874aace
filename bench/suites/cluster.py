"""Three brokers compared with three nodes of Apache Kafka: `make bench-cluster`.

Measures the cost of replication (throughput and latency with acks=all, three replicas), how long a partition is
unavailable for writes after its leader is killed, and how brokers and their controller handle thousands of partitions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.command import Command, Size
from bench.harness.page import PagePart
from bench.harness.paths import PERFORMANCE_PAGE, RESULTS
from bench.harness.report import Goal
from bench.harness.suite import Block, Group, Say, Stage, Suite, Workload
from bench.systems.cluster import BROKERS, SESSION_MS, Cluster
from bench.systems.kafka_cluster import KafkaCluster
from bench.systems.system import command_output
from bench.systems.tailrace_cluster import TailraceCluster
from bench.systems.versions import server_versions, tool_versions
from bench.workloads.cluster import (
    CONFIGS,
    PARTITIONS,
    ClusterTarget,
    LatencyToAll,
    LeaderKilled,
    ManyPartitions,
    ProduceToAll,
    warm_up,
)

SYSTEMS: Mapping[str, type[Cluster]] = {"tailrace": TailraceCluster, "kafka": KafkaCluster}
PARTS = ("throughput", "latency", "kills", "partitions")
#: Clusters are warmed up before these.
_WARM_PARTS = {"throughput", "latency"}
LOAD, MANY = "load", "partitions"
KILLS, QUICK_KILLS = 5, 1
GOALS = (
    Goal("throughput of 1 KB messages, relative to Kafka", "produce-1k-acks-all", "throughput_mb_s", 1.0),
    Goal("throughput of 100 B messages, relative to Kafka", "produce-100b-acks-all", "throughput_mb_s", 1.0),
    Goal("from the death of a leader to the next write, relative to Kafka", "leader-killed", "failover_s", 1.0),
    Goal("a new controller loads 10,000 partitions, s", "controller-killed-10000-partitions", "load_s", 5.0, False),
    Goal("1,000 leaders of a dead broker moved, s", "lose-1000-leaders", "moved_s", 5.0, False),
    Goal("an idle broker with 1,000 partitions, % of a core", "idle-1000-partitions", "idle_percent", 3.0, False),
)


class FreshClusters(Stage[ClusterTarget]):
    """Every block gets its own cluster."""

    def __init__(self, systems: Sequence[str], scale: float, is_warmed_up: bool) -> None:
        self._systems = systems
        self._scale = scale
        self._is_warmed_up = is_warmed_up

    def versions(self) -> dict[str, str]:
        etcd = command_output(["etcd", "--version"]).split()[-1]
        return {**tool_versions(), **server_versions(self._systems)[0], "etcd": etcd}

    @contextmanager
    def block(self, block: Block[ClusterTarget], directory: Path, say: Say) -> Iterator[ClusterTarget]:
        cluster = SYSTEMS[block.system](directory)
        target = ClusterTarget(cluster, self._scale, say)
        try:
            say("start")
            cluster.start()
            if block.group == LOAD and self._is_warmed_up:
                say("warm-up")
                warm_up(target)
            yield target
        finally:
            cluster.end()

    def check_alive(self, target: ClusterTarget) -> None:
        target.cluster.check_alive()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, help=f"kill this many leaders in each round (default {KILLS})")
    parser.add_argument(
        "--partitions-per-topic", type=int, default=100, help="partitions per topic, where there are many partitions"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help="run only these parts"
    )


def make(options: argparse.Namespace) -> Suite[ClusterTarget]:
    kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
    by_part: Mapping[str, tuple[Workload[ClusterTarget], ...]] = {
        "throughput": (ProduceToAll("1k", 1000, 500_000), ProduceToAll("100b", 100, 2_000_000)),
        "latency": (LatencyToAll(),),
        "kills": (LeaderKilled(kills),),
    }
    load = tuple(item for part, items in by_part.items() if part in options.parts for item in items)
    groups = [Group(LOAD, load, tuple(SYSTEMS))] if load else []
    if "partitions" in options.parts:
        groups.append(Group(MANY, (ManyPartitions(options.partitions_per_topic),), tuple(SYSTEMS), rounds=1))
    return Suite(
        name="cluster",
        stage=FreshClusters(options.systems, options.scale, not _WARM_PARTS.isdisjoint(options.parts)),
        groups=groups,
        systems=options.systems,
        rounds=options.rounds,
        scale=options.scale,
        output=options.output or PAGE.results,
        settings={
            "brokers": BROKERS,
            "replicas": BROKERS,
            "partitions": PARTITIONS,
            **CONFIGS,
            "broker.session.timeout.ms": SESSION_MS,
            "kills": kills,
            "partitions_per_topic": options.partitions_per_topic,
            "parts": list(options.parts),
        },
        touches_memory=options.scale >= 1,
        summary=partial(report.summary, goals=GOALS, shows_alone=True),
        page=PAGE,
    )


def page_text(results: Mapping[str, Any]) -> str:
    """Return the page's part about a full run."""
    versions, settings = results["versions"], results["settings"]
    return report.page_part(
        results,
        f"tailrace {versions['tailrace']} with etcd {versions['etcd']}, Kafka {versions['kafka']}; "
        f"{settings['rounds'] * settings['kills']} leaders killed on each side",
        [
            report.markdown_table(report.goal_rows(results, GOALS), report.GOAL_HEADINGS),
            report.markdown_table([row[:-1] for row in report.ratio_rows(results)], report.HEADINGS[:-1]),
            "Figures of tailrace alone:",
            report.markdown_table(report.alone_rows(results), report.ALONE_HEADINGS),
        ],
    )


PAGE = PagePart(RESULTS / "cluster.json", PERFORMANCE_PAGE, page_text, partial(report.missed_part, goals=GOALS))
COMMAND = Command(
    name="cluster",
    description="compare three brokers with three nodes of Kafka",
    systems=list(SYSTEMS),
    full=Size(3),
    quick=Size(1, 0.02),
    make=make,
    add_options=add_options,
    pages=(PAGE,),
)
