"""The speed of archiving topics: the first half of `make bench-archive`."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from bench.harness import report
from bench.harness.command import Command, Size
from bench.harness.paths import RESULTS
from bench.harness.ratios import OURS
from bench.harness.report import Goal
from bench.harness.suite import Block, Group, Say, Stage, Suite
from bench.systems.tailrace import Tailrace
from bench.systems.versions import versions_of
from bench.workloads.archiving import Archiving
from bench.workloads.spark_rows import PARTITIONS, Rows
from bench.workloads.target import Target, started

#: Bytes of keys and values together; all written rows are archived.
SIZES = (Rows("1k", 1_000, 4_000_000, 4_000_000), Rows("100b", 100, 30_000_000, 30_000_000))
GOALS = (
    Goal("archive records of 1 KB, MB a second", "1k", "throughput_mb_s", 200.0, False),
    Goal("archive records of 100 B, rows a second", "100b", "rows_s", 700_000.0, False),
)


class FreshBrokers(Stage[Target]):
    """Every size gets its own broker and topic."""

    def versions(self) -> dict[str, str]:
        import pyspark

        return versions_of(("python", "java", OURS)) | {"spark": pyspark.__version__}

    def block(self, block: Block[Target], directory: Path, say: Say) -> AbstractContextManager[Target]:
        # The sizes are already scaled.
        return started(Tailrace(), directory, 1.0, say)

    def check_alive(self, target: Target) -> None:
        target.system.server.check_alive()


def make(options: argparse.Namespace) -> Suite[Target]:
    sizes = [rows.scaled(options.scale) for rows in SIZES]
    return Suite(
        name="archive",
        stage=FreshBrokers(),
        groups=[Group(rows.name, (Archiving(rows),), (OURS,)) for rows in sizes],
        systems=[OURS],
        rounds=options.rounds,
        scale=options.scale,
        output=options.output or RESULTS / "archive.json",
        settings={
            "master": "local[2]",
            "partitions": PARTITIONS,
            "rows": {rows.name: rows.read for rows in sizes},
        },
        extras=lambda _: {"goals": {goal.workload: {goal.metric: goal.bound} for goal in GOALS}},
        summary=partial(report.summary, goals=GOALS, shows_alone=True),
    )


COMMAND = Command(
    name="archive",
    description="measure the speed of archiving topics",
    full=Size(3),
    # Fewer would be archived in one round.
    quick=Size(3, 0.5),
    make=make,
)
