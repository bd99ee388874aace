"""The data source `tailrace` compared with Spark's Kafka connector, on one broker: `make bench-spark`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.command import Command, Size
from bench.harness.page import PagePart
from bench.harness.paths import PERFORMANCE_PAGE, RESULTS, connector_jars
from bench.harness.report import Goal
from bench.harness.suite import Block, Group, Say, Suite
from bench.suites.one_broker import OneBroker
from bench.systems.versions import versions_of
from bench.workloads.spark import LOADED_BATCH_BYTES, SYSTEMS, FirstRow, Queries, SparkTarget, load
from bench.workloads.spark_rows import ACTIONS, CONNECTOR, OURS, PARTITIONS, SIZES, Rows, topic_of

PARTS = ("first-row", *ACTIONS)
#: The name of a block in which both take turns.
BOTH = " and ".join(SYSTEMS)
#: Goals relative to Spark's Kafka connector.
GOALS = (
    *(
        Goal(f"{words} {size}, rows a second, relative to the connector", f"{action}-{name}", "rows_s", 1.0)
        for action, words in (
            ("count", "count rows of"),
            ("parquet", "to Parquet, rows of"),
            ("write", "write rows of"),
        )
        for name, size in (("100b", "100 B"), ("1k", "1 KB"))
    ),
    Goal("first row once Spark is up, time relative to the connector", "first-row", "first_row_s", 1.0),
    Goal("first row since the start of the process, time relative to the connector", "first-row", "from_start_s", 1.0),
)


class LoadedBroker(OneBroker[SparkTarget]):
    """A broker with the topics that both sides read."""

    def __init__(self, sizes: tuple[Rows, ...]) -> None:
        super().__init__()
        self._sizes = sizes

    def versions(self) -> dict[str, str]:
        return versions_of(("python", "java", OURS)) | spark_versions()

    def fill(self, scratch: Path, say: Say) -> None:
        for rows in self._sizes:
            say(f"loading {rows.read:,} rows of {rows.record_bytes} B into {topic_of(rows)}")
            load(self.handle.address, rows)

    def target(self, block: Block[SparkTarget], directory: Path, say: Say) -> SparkTarget:
        return SparkTarget(self.handle.address, directory, self._sizes, block.round, block.system, say)


def spark_versions() -> dict[str, str]:
    """Return the versions of Spark and of its connector."""
    import pyspark

    (jar,) = (path for path in connector_jars() if path.name.startswith("spark-sql-kafka-0-10_"))
    return {"spark": pyspark.__version__, CONNECTOR: jar.stem.rpartition("-")[2]}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help="run only these parts"
    )


def make(options: argparse.Namespace) -> Suite[SparkTarget]:
    sizes = tuple(rows.scaled(options.scale) for rows in SIZES)
    actions = tuple(action for action in ACTIONS if action in options.parts)
    groups: list[Group[SparkTarget]] = []
    if "first-row" in options.parts:
        groups.append(Group("first-row", (FirstRow(),), SYSTEMS))
    if actions:
        groups.append(Group("workloads", (Queries(actions),), (BOTH,)))
    return Suite(
        name="spark",
        stage=LoadedBroker(sizes),
        groups=groups,
        systems=[*SYSTEMS, BOTH],
        rounds=options.rounds,
        scale=options.scale,
        output=options.output or PAGE.results,
        settings={
            "master": "local[2]",
            "partitions": PARTITIONS,
            "loaded_batch_bytes": LOADED_BATCH_BYTES,
            "rows": {rows.name: {"read": rows.read, "written": rows.written} for rows in sizes},
            "parts": list(options.parts),
        },
        summary=partial(report.summary, goals=GOALS),
        page=PAGE,
    )


def page_text(results: Mapping[str, Any]) -> str:
    """Return the page's part about a full run."""
    versions = results["versions"]
    return report.page_part(
        results,
        f"tailrace {versions['tailrace']}, Spark {versions['spark']} with its Kafka connector "
        f"{versions['kafka-connector']}, {versions['java']}, Python {versions['python']}",
        [
            report.markdown_table(report.goal_rows(results, GOALS), report.GOAL_HEADINGS),
            report.markdown_table([row[:-1] for row in report.ratio_rows(results)], report.HEADINGS[:-1]),
        ],
    )


PAGE = PagePart(RESULTS / "spark.json", PERFORMANCE_PAGE, page_text, partial(report.missed_part, goals=GOALS))
COMMAND = Command(
    name="spark",
    description="compare the data source with Spark's Kafka connector",
    full=Size(3),
    quick=Size(3, 0.1),
    make=make,
    add_options=add_options,
    pages=(PAGE,),
)
