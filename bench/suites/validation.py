"""The cost of `tailrace.records.validate`: `python -m bench validation` measures a broker with and without it."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from bench.harness import report
from bench.harness.command import Command, Size
from bench.harness.paths import ROOT
from bench.harness.suite import Block, Group, Say, Suite
from bench.suites.one_broker import OneBroker
from bench.systems.versions import versions_of
from bench.workloads.validation import OFF, ON, ProduceBatches, ValidationTarget
from tailrace.records.compression import Compression

#: The records of a batch, and the bytes of a value: batches of a busy producer, and small ones.
SHAPES = ((1000, 100), (100, 1000), (10, 100))


class ValidatingBroker(OneBroker[ValidationTarget]):
    """The topic decides about validation, so one broker does both."""

    def versions(self) -> dict[str, str]:
        return versions_of(("tailrace", "python"))

    def target(self, block: Block[ValidationTarget], directory: Path, say: Say) -> ValidationTarget:
        return ValidationTarget(self.handle, block.system, block.round)


def make(options: argparse.Namespace) -> Suite[ValidationTarget]:
    workloads = [ProduceBatches(codec, records, size) for records, size in SHAPES for codec in Compression]
    return Suite(
        name="validation",
        stage=ValidatingBroker(),
        groups=[Group(workload.name, (workload,), (OFF, ON)) for workload in workloads],
        systems=[OFF, ON],
        rounds=options.rounds,
        scale=1.0,
        # No page shows it.
        output=options.output or ROOT / "build/bench-validation.json",
        ours=ON,
        summary=partial(report.summary, ours=ON),
    )


COMMAND = Command(
    name="validation",
    description="compare a topic whose records the broker validates with one without validation",
    full=Size(3),
    quick=Size(1),
    make=make,
)
