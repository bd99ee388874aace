"""The presets of docs/tuning.md compared with the defaults: `python -m bench presets`, after `scripts/setup-bench`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness.command import Command, Size
from bench.harness.page import PagePart
from bench.harness.paths import RESULTS, TUNING_PAGE
from bench.harness.ratios import direction, spread
from bench.harness.report import Results, markdown_table, number, plain_table
from bench.harness.suite import Block, Group, Say, Stage, Suite
from bench.systems.tailrace import Tailrace
from bench.systems.versions import versions_of
from bench.workloads.presets import CONSUMER, DEFAULT, PRESETS, PRODUCER, WORKLOADS, Tuned, warm_up
from bench.workloads.target import started

#: Rounds that vary by more than this share of their median were disturbed.
_NOISE = 0.25
_BY_NAME = {preset.name: preset for preset in PRESETS}


class TunedBrokers(Stage[Tuned]):
    """Every preset gets its own broker in each round."""

    def versions(self) -> dict[str, str]:
        return versions_of(("tailrace", "librdkafka", "python"))

    @contextmanager
    def block(self, block: Block[Tuned], directory: Path, say: Say) -> Iterator[Tuned]:
        preset = _BY_NAME[block.system]
        # The loads have the length that a measurement needs.
        with started(Tailrace(preset.broker), directory, 1.0, say) as server:
            warm_up(server)
            yield Tuned(preset, server)

    def check_alive(self, target: Tuned) -> None:
        target.server.system.server.check_alive()


def make(options: argparse.Namespace) -> Suite[Tuned]:
    return Suite(
        name="presets",
        stage=TunedBrokers(),
        groups=[Group("loads", WORKLOADS, tuple(_BY_NAME))],
        systems=options.systems,
        rounds=options.rounds,
        scale=1.0,
        output=options.output or PAGE.results,
        ours=None,
        subject="preset",
        extras=lambda _: {"rounds": options.rounds},
        summary=lambda results: plain_table(figure_rows(results), HEADINGS),
        page=PAGE,
    )


def values(results: Results, preset: str, workload: str, figure: str) -> list[float]:
    """Return one figure of all rounds."""
    return [
        sample["metrics"][figure]
        for sample in results["samples"]
        if sample["preset"] == preset and sample["workload"] == workload and figure in sample["metrics"]
    ]


def cell(found: Sequence[float], default: Sequence[float]) -> str:
    """Format the median with half its spread and, unless it is the default, the ratio to the default."""
    if not found:
        return "-"
    middle = statistics.median(found)
    text = f"{number(middle)} ±{spread(found) * 50:.0f}%"
    basis = statistics.median(default) if default else 0.0
    return text if found is default or not basis else f"{text} ({middle / basis:.2f}x)"


def figure_rows(results: Results) -> list[list[str]]:
    """Return a row for each figure, with a column for each preset."""
    rows = []
    for workload in WORKLOADS:
        for figure, unit in workload.figures.items():
            default = values(results, DEFAULT, workload.name, figure)
            cells = [
                cell(
                    default if preset.name == DEFAULT else values(results, preset.name, workload.name, figure), default
                )
                for preset in PRESETS
            ]
            rows.append([workload.title, unit, direction(figure), *cells])
    return rows


def noise_text(results: Results) -> str:
    """Return a warning if the runs vary so much that ratios near 1 mean nothing."""
    spreads = [
        spread(found)
        for workload in WORKLOADS
        for figure in workload.figures
        for preset in PRESETS
        if (found := values(results, preset.name, workload.name, figure))
    ]
    noisy = sum(1 for found in spreads if found / 2 > _NOISE)
    if not noisy:
        return ""
    return (
        f" **{noisy} of {len(spreads)} figures differ by more than ±{_NOISE:.0%} between the rounds**: the machine was "
        "busy with other work, and only large ratios mean something."
    )


def settings_text() -> str:
    """Return the settings of every preset, ready to be copied."""
    parts: list[str] = []
    for preset in PRESETS[1:]:
        parts += [f"### {preset.name.capitalize()}: {preset.purpose}", "", "```properties"]
        changed = {
            "broker": preset.broker,
            "topic, instead of the broker": preset.topic,
            "producer (librdkafka's names)": _changed(preset.producer, PRODUCER),
            "consumer (librdkafka's names)": _changed(preset.consumer, CONSUMER),
        }
        for where, settings in changed.items():
            if settings:
                parts += [f"# {where}", *(f"{name}={value}" for name, value in settings.items())]
        parts += ["```", ""]
    return "\n".join(parts).rstrip()


def _changed(settings: Mapping[str, str], default: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if default.get(name) != value}


def generated_part(results: Results) -> str:
    """Return the part of the page that a run writes."""
    found = results["machine"]
    return "\n".join(
        [
            settings_text(),
            "",
            "### What they measured",
            "",
            f"Run of {results['date']} ({results['minutes']:.0f} minutes, {results['rounds']} rounds) on "
            f"{found['cores']} cores of {found['cpu']}, {found['memory_gb']} GB, {found['filesystem']}; tailrace "
            f"{results['versions']['tailrace']}, librdkafka {results['versions']['librdkafka']}, Python "
            f"{results['versions']['python']}. Medians, half of the distance between the extremes (±), and in "
            f"brackets the ratio to the default.{noise_text(results)}",
            "",
            markdown_table(figure_rows(results), HEADINGS),
        ]
    )


HEADINGS = ["measured", "figure", "better", *_BY_NAME]
PAGE = PagePart(RESULTS / "presets.json", TUNING_PAGE, generated_part)
COMMAND = Command(
    name="presets",
    description="measure the presets of docs/tuning.md",
    systems=list(_BY_NAME),
    full=Size(3),
    quick=Size(1),
    make=make,
    pages=(PAGE,),
)
