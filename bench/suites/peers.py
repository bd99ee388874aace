"""A single broker compared with Apache Kafka and other queues: `make bench`. Consumer groups only run if selected."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.command import Command, Size
from bench.harness.page import PagePart
from bench.harness.paths import PERFORMANCE_PAGE, RESULTS, ROOT
from bench.harness.ratios import compute_scaling
from bench.harness.suite import Block, Figures, Group, Say, Stage, Suite, Workload
from bench.systems import SYSTEMS
from bench.systems.versions import server_versions, tool_versions
from bench.workloads.groups import GroupJoin, GroupKill, GroupRestart, MemberRequests
from bench.workloads.single import (
    LONGEST_SECONDS,
    Bulk,
    CatchUp,
    Consume,
    Latency,
    OneMessage,
    Produce,
    RawFetch,
    RawProduce,
    Tail,
)
from bench.workloads.target import Target, started
from bench.workloads.warm_up import START, START_FIGURES, first_ack_and_warm_up

KAFKA_PROTOCOL = ("tailrace", "kafka")
OTHER_PEERS = ("redis", "nats", "rabbitmq-quorum", "rabbitmq-stream")

Workloads = tuple[Workload[Target], ...]


def _pairs(*bulks: Bulk) -> Workloads:
    return tuple(workload for bulk in bulks for workload in (Produce(bulk), Consume(bulk)))


def _bulks(size: int, codec: str) -> tuple[Bulk, ...]:
    return tuple(Bulk(size, batch, partitions, codec) for batch in ("default", "16384") for partitions in (1, 6))


#: Every group runs on a freshly started server.
FULL_GROUPS: dict[str, Workloads] = {
    "bulk-1k": _pairs(*_bulks(1000, "none")),
    "bulk-100b": _pairs(*_bulks(100, "none")),
    "lz4": _pairs(*_bulks(1000, "lz4"), *_bulks(100, "lz4")),
    "requests": (OneMessage(1), OneMessage(5), Latency(1000), Latency(10_000)),
    "flow": (Tail(), CatchUp(cold=False), CatchUp(cold=True)),
    "raw": (
        *(RawProduce(partitions=number) for number in (1, 100, 1000)),
        *(RawProduce(idle_connections=number) for number in (100, 1000)),
        RawProduce(batch_bytes=16384),
        RawFetch(16384),
    ),
}
QUICK_GROUPS: dict[str, Workloads] = {
    "quick": (
        OneMessage(1),
        OneMessage(5),
        Latency(1000),
        Latency(10_000),
        *_pairs(Bulk(1000), Bulk(100)),
        Produce(Bulk(1000, "16384", 6)),
        Produce(Bulk(1000, codec="lz4")),
        Tail(),
        RawProduce(partitions=1),
        RawProduce(partitions=100),
        RawProduce(idle_connections=1000),
    ),
}
PROTOCOLS = ("eager", "cooperative", "consumer")
#: Only run if selected by name; they have their own results file and part of the page.
NAMED_GROUPS: dict[str, Workloads] = {
    "groups": (
        *(MemberRequests(kind, groups=1000) for kind in ("heartbeat", "commit")),
        *(MemberRequests(kind, members=500) for kind in ("heartbeat", "commit")),
        # The broker sets the sessions of the consumer protocol; they last 45 seconds on both.
        *(GroupKill(protocol) for protocol in PROTOCOLS[:2]),
        *(GroupJoin(protocol) for protocol in PROTOCOLS),
        *(GroupRestart(protocol) for protocol in PROTOCOLS),
    ),
}
GROUPS = {**FULL_GROUPS, **NAMED_GROUPS}
#: The four that the other peers run too.
PEER_GROUP = _pairs(Bulk(1000), Bulk(100))

#: Each axis maps its points to workloads; everything else is equal.
SCALING_AXES = {
    "partitions": {number: RawProduce(partitions=number).name for number in (1, 100, 1000)},
    "idle connections": {number: RawProduce(idle_connections=number).name for number in (0, 100, 1000)},
}
#: The number of rounds for the other peers, and the longest duration of a run in minutes.
MODES = {"full": (3, 58.0), "part": (0, 58.0), "quick": (1, 7.5)}
LATEST = RESULTS / "latest.json"
GROUP_RESULTS = RESULTS / "groups.json"
#: Partial results do not replace what a page shows.
PART_RESULTS = ROOT / "build/bench-part.json"


class FreshServers(Stage[Target]):
    """Every block gets its own server, on an empty directory."""

    def __init__(self, systems: Sequence[str], scale: float) -> None:
        self._versions, self._missing = server_versions(systems)
        self._scale = scale

    def versions(self) -> dict[str, str]:
        return {**tool_versions(), **self._versions}

    def missing(self, systems: Sequence[str]) -> dict[str, str]:
        return self._missing

    def block(self, block: Block[Target], directory: Path, say: Say) -> AbstractContextManager[Target]:
        say("start")
        return started(SYSTEMS[block.system](), directory, self._scale, say)

    def warm_up(self, target: Target) -> Iterable[Figures]:
        if target.system.speaks_kafka:
            return first_ack_and_warm_up(target)
        target.system.wait_ready()
        return ()

    def check_alive(self, target: Target) -> None:
        target.system.server.check_alive()


def chosen(
    groups: Mapping[str, Workloads], names: Sequence[str], parser: argparse.ArgumentParser
) -> dict[str, Workloads]:
    """Return the workloads with these names, in the order of the groups."""
    known = [item.name for group in groups.values() for item in group]
    for name in names:
        if name not in known:
            parser.error(f"these groups have no workload {name}: choose from {', '.join(known)}")
    left = {group: tuple(item for item in items if item.name in names) for group, items in groups.items()}
    return {group: items for group, items in left.items() if items}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), metavar="NAME", help="run only these groups")
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="run only these workloads of the groups")


def make(options: argparse.Namespace) -> Suite[Target]:
    mode = "quick" if options.quick else "part" if options.groups else "full"
    peer_rounds, minutes = MODES[mode]
    workloads = QUICK_GROUPS if mode == "quick" else FULL_GROUPS
    output, page = LATEST, PAGE
    if mode == "part":
        workloads = {name: GROUPS[name] for name in options.groups}
        if set(workloads) <= set(NAMED_GROUPS):
            output, page = GROUP_RESULTS, GROUP_PAGE
    if options.workloads:
        workloads, output = chosen(workloads, options.workloads, options.parser), PART_RESULTS
    groups = [Group(name, items, KAFKA_PROTOCOL) for name, items in workloads.items()]
    return Suite(
        name="peers",
        stage=FreshServers(options.systems, options.scale),
        groups=[*groups, Group("peers", PEER_GROUP, OTHER_PEERS, rounds=min(peer_rounds, options.rounds))],
        systems=options.systems,
        rounds=options.rounds,
        scale=options.scale,
        output=options.output or output,
        settings={
            "acks": "1",
            "longest_produce_seconds": LONGEST_SECONDS,
            "systems": {
                name: {
                    "durability": system.durability,
                    "client": system.client,
                    "share_of_messages": system.count_share,
                }
                for name, system in SYSTEMS.items()
            },
        },
        judged_by={START: START_FIGURES},
        limit_minutes=minutes,
        measures_limits=True,
        touches_memory=True,
        extras=lambda samples: {"mode": mode, "scaling": compute_scaling(samples, SCALING_AXES)},
        chart_title=chart_title,
        page=page,
    )


def chart_title(results: Mapping[str, Any]) -> str:
    return f"How many times better tailrace {results['versions'].get('tailrace', '')} is ({results['mode']} run)"


def page_text(results: Mapping[str, Any]) -> str:
    """Return the page's part about a full run."""
    versions = results["versions"]
    durability = [
        [name, versions[name], settings["durability"], settings["client"]]
        for name, settings in results["settings"]["systems"].items()
        if name in versions
    ]
    return report.page_part(
        results,
        f"librdkafka {versions['librdkafka']}, Python {versions['python']}",
        [
            f"Physical limits in the same run: {report.limits_text(results)}.",
            "![How many times better tailrace is, for each workload and peer](performance.svg)",
            report.markdown_table(report.ratio_rows(results), report.HEADINGS),
            "### Cost of a request with more partitions and connections",
            report.markdown_table(
                report.scaling_rows(results), ["system", "axis", "CPU µs a request at each point", "growth"]
            ),
            "### What was compared",
            report.markdown_table(durability, ["system", "version", "durability", "client"]),
        ],
    )


def group_page_text(results: Mapping[str, Any]) -> str:
    """Return the page's part about the consumer groups' workloads."""
    versions = results["versions"]
    # The full run has the starts of the servers.
    rows = [row[:-1] for row in report.ratio_rows(results) if row[0] != START]
    return report.page_part(
        results,
        f"tailrace {versions['tailrace']}, Kafka {versions['kafka']}",
        [report.markdown_table(rows, report.HEADINGS[:-1])],
    )


def _not_full(results: Mapping[str, Any]) -> str | None:
    mode = results["mode"]
    return None if mode == "full" else f"from a {mode} run, but the page only shows full runs"


def _not_whole(results: Mapping[str, Any]) -> str | None:
    is_whole = results["settings"]["scale"] >= 1
    return None if is_whole else "from a run with a part of the load, but the page only shows full runs"


PAGE = PagePart(LATEST, PERFORMANCE_PAGE, page_text, _not_full, has_chart=True)
GROUP_PAGE = PagePart(GROUP_RESULTS, PERFORMANCE_PAGE, group_page_text, _not_whole)
COMMAND = Command(
    name="peers",
    description="compare tailrace with its peers, as ratios",
    systems=list(SYSTEMS),
    full=Size(3),
    quick=Size(3, 0.4),
    make=make,
    add_options=add_options,
    pages=(PAGE, GROUP_PAGE),
)
