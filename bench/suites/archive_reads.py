"""The cost of reading an archive through the broker: the second half of `make bench-archive`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.clients.programs import rdbench, run_client
from bench.clients.topics import create_topic
from bench.harness import report
from bench.harness.command import Command, Size
from bench.harness.failures import ServerFailedError
from bench.harness.paths import RESULTS
from bench.harness.ratios import Sample
from bench.harness.suite import Block, Group, Say, Suite
from bench.suites.one_broker import OneBroker
from bench.systems.versions import versions_of
from bench.workloads.archive_filling import fill_archive, local_start
from bench.workloads.archive_reads import (
    ARCHIVE,
    LIVE_ARCHIVE,
    LIVE_RATE,
    LOG,
    LOOKED_UP,
    LOOKUP_BYTES,
    NOTHING,
    SIZES,
    CatchUpRead,
    LiveBeside,
    LookUp,
    ReadTarget,
    live_record_count,
    look_up,
    record_count,
    topic_of,
)

_GIVEN_UP_SECONDS = 120.0


class ArchivedTopics(OneBroker[ReadTarget]):
    """A broker with the same records in the log of one topic and in the archive of another."""

    def __init__(self, scale: float, seed: int) -> None:
        # It often checks what it may delete.
        super().__init__({"log.retention.check.interval.ms": "500"})
        self._scale = scale
        self._seed = seed

    def versions(self) -> dict[str, str]:
        return versions_of(("python", "librdkafka", "tailrace"))

    def fill(self, scratch: Path, say: Say) -> None:
        archive = str(scratch / "archive")
        for size in SIZES:
            count = record_count(size, self._scale)
            self._produce(topic_of(LOG, size), size, count, {})
            self._archive(archive, topic_of(ARCHIVE, size), size, count, say)
        # Long enough to keep one reader busy all the time.
        self._archive(archive, LIVE_ARCHIVE, 1000, live_record_count(self._scale), say)

    def _produce(self, topic: str, size: int, count: int, configs: Mapping[str, str]) -> None:
        create_topic(self.handle.address, topic, 1, configs)
        run_client(rdbench("produce", self.handle, topic, partitions=1, count=count, size=size, acks=1))

    def _archive(self, uri: str, topic: str, size: int, count: int, say: Say) -> None:
        """Move records through the log of a topic into its archive, until only the archive has them."""
        configs = {
            "tailrace.archive.enable": "true",
            "tailrace.archive.uri": uri,
            "local.retention.ms": "1",
            "file.delete.delay.ms": "0",
        }
        self._produce(topic, size, count, configs)
        started = time.monotonic()
        fill_archive(self.handle.address, topic, count)
        say(f"{count:,} records of {size} B archived in {time.monotonic() - started:.1f} s")
        deadline = time.monotonic() + _GIVEN_UP_SECONDS
        while local_start(self.handle.address, topic) < count:
            if time.monotonic() > deadline:
                output = self.broker.server.output_tail()
                raise ServerFailedError(f"the broker does not delete archived records\n{output}")
            time.sleep(0.1)
        # The first read starts the process that reads archives.
        look_up(self.handle, topic, [0], 1)

    def target(self, block: Block[ReadTarget], directory: Path, say: Say) -> ReadTarget:
        return ReadTarget(self.broker, self.handle, block.system, self._scale, self._seed)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="select the offsets to look up with this seed")


def make(options: argparse.Namespace) -> Suite[ReadTarget]:
    groups: list[Group[ReadTarget]] = []
    for size in SIZES:
        groups.append(Group(f"catch-up-{size}b", (CatchUpRead(size),), (LOG, ARCHIVE)))
        groups += [
            Group(f"lookup-{answer}-{size}b", (LookUp(size, answer),), (LOG, ARCHIVE)) for answer in LOOKUP_BYTES
        ]
    groups.append(Group("live", (LiveBeside(),), (NOTHING, LOG, ARCHIVE)))
    return Suite(
        name="archive-reads",
        stage=ArchivedTopics(options.scale, options.seed),
        groups=groups,
        systems=[NOTHING, LOG, ARCHIVE],
        rounds=options.rounds,
        scale=options.scale,
        output=options.output or RESULTS / "archive-reads.json",
        settings={
            "records": {f"{size}b": record_count(size, options.scale) for size in SIZES},
            "looked_up": LOOKED_UP,
            "live_rate": LIVE_RATE,
            "seed": options.seed,
        },
        ours=ARCHIVE,
        subject="source",
        extras=lambda samples: {"figures": medians(samples)},
        summary=partial(report.summary, ours=ARCHIVE),
    )


def medians(samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """Return the median of each figure by workload and source, and the archive's relative to the log's or none."""
    found: dict[str, dict[str, Any]] = {}
    for workload, source in dict.fromkeys((each.workload, each.system) for each in samples):
        taken = [each.metrics for each in samples if (each.workload, each.system) == (workload, source)]
        middle = {name: statistics.median(metrics[name] for metrics in taken) for name in taken[0]}
        found.setdefault(workload, {})[source] = middle
    for by_source in found.values():
        base = NOTHING if NOTHING in by_source else LOG
        archive, others = by_source.get(ARCHIVE, {}), by_source.get(base, {})
        by_source[f"archive_to_{base}"] = {
            name: value / others[name] for name, value in archive.items() if others.get(name)
        }
    return found


COMMAND = Command(
    name="archive-reads",
    description="measure reads of the archive through the broker",
    full=Size(3),
    quick=Size(3, 0.1),
    make=make,
    add_options=add_options,
)
