"""The results file: the same structure for every suite, plus a suite's own additions."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import chart, machine
from bench.harness.ratios import Sample, compute_ratios, compute_shares, has_better_side
from bench.harness.suite import Suite, T


@dataclass(slots=True)
class Outcome:
    """The results of a run so far."""

    samples: list[Sample] = field(default_factory=list)
    limit_samples: list[dict[str, float]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)


def assemble(suite: Suite[T], run: Outcome, minutes: float, scratch: Path) -> dict[str, Any]:
    """Return the content of the results file."""
    workloads = {item.name: item for group in suite.groups for item in group.workloads}
    judged_by = {**suite.judged_by, **{name: item.judged_by for name, item in workloads.items() if item.judged_by}}
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": minutes,
        "machine": machine.describe_machine(scratch),
        "versions": suite.stage.versions(),
        "settings": {**suite.settings, "rounds": suite.rounds, "scale": suite.scale},
    }
    medians: dict[str, float] = {}
    if run.limit_samples:
        medians = {name: statistics.median(each[name] for each in run.limit_samples) for name in run.limit_samples[0]}
        found |= {"limits": medians, "limit_samples": run.limit_samples}
    bounded_by = {name: item.bounded_by for name, item in workloads.items()} if medians else {}
    return found | {
        "ratios": compute_ratios(run.samples, compared(run.samples, judged_by), suite.ours),
        "shares": compute_shares(run.samples, medians, bounded_by),
        **suite.extras(run.samples),
        "skipped": run.skipped,
        "failures": run.failures,
        "samples": [
            {suite.subject: each.system, "workload": each.workload, "round": each.round, "metrics": dict(each.metrics)}
            for each in run.samples
        ],
    }


def compared(samples: Sequence[Sample], judged_by: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the figures by which each workload is compared, in the order in which they were measured."""
    found: dict[str, dict[str, None]] = {name: dict.fromkeys(metrics) for name, metrics in judged_by.items()}
    for sample in samples:
        if sample.workload not in judged_by:
            metrics = found.setdefault(sample.workload, {})
            metrics |= dict.fromkeys(name for name in sample.metrics if has_better_side(name))
    return {name: list(metrics) for name, metrics in found.items()}


def write(suite: Suite[T], found: Mapping[str, Any]) -> list[Path]:
    """Write the results file, and the chart beside it if the suite has one."""
    path = suite.output
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    if suite.chart_title is None:
        return [path]
    drawing = path.with_suffix(".svg")
    drawing.write_text(chart.render(found["ratios"], suite.chart_title(found)))
    return [path, drawing]
