"""Presets for latency, throughput and durability: their exact settings, and what each brings beside the defaults.

`python -m bench.presets` measures all of them in turn on this machine, `--docs` writes docs/tuning.md from the last
results. The settings stand here and nowhere else, so that what the page recommends is what was measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from bench.clients.programs import ClientFailedError, Metrics, measured, rdbench, run_client
from bench.harness import machine
from bench.harness.paths import ROOT
from bench.harness.processes import ServerFailedError, ServerProcess
from bench.harness.ratios import direction, spread
from bench.report import markdown_table, number
from bench.systems.system import Handle
from bench.systems.tailrace import Tailrace

RESULTS = ROOT / "bench/results/presets.json"
PAGE = ROOT / "docs/tuning.md"
BEGIN = "<!-- Generated from bench/results/presets.json by `python -m bench.presets --docs`: begin -->"
END = "<!-- Generated: end -->"

DEFAULT = "default"
#: Half of it compresses away, as much of what people send does.
_PAYLOAD = "lz4"
_LONGEST_SECONDS = 10
#: Rounds that differ by more than this share of their median were disturbed.
_NOISE = 0.25


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings that belong together, under the names that broker, topics and librdkafka give them."""

    name: str
    purpose: str
    broker: Mapping[str, str] = field(default_factory=dict)
    #: The same for single topics, where the broker shall keep its defaults.
    topic: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    consumer: Mapping[str, str] = field(default_factory=dict)


#: librdkafka's own defaults, given because the benchmark's client has others.
_PRODUCER = {"acks": "all", "linger.ms": "5", "compression.codec": "none"}
_CONSUMER = {"fetch.wait.max.ms": "500", "queued.min.messages": "100000"}

PRESETS = (
    Preset(DEFAULT, "nothing set", producer=_PRODUCER, consumer=_CONSUMER),
    Preset(
        "latency",
        "a message reaches its consumer as soon as possible",
        producer={**_PRODUCER, "linger.ms": "0"},
        consumer=_CONSUMER,
    ),
    Preset(
        "throughput",
        "the most bytes a second, for the least CPU",
        broker={"tailrace.flush.background.bytes": "67108864"},
        producer={**_PRODUCER, "linger.ms": "50", "batch.size": "1000000", "compression.codec": "lz4"},
        consumer={**_CONSUMER, "queued.min.messages": "1000000", "fetch.message.max.bytes": "8388608"},
    ),
    Preset(
        "durability",
        "an acknowledged message survives a power cut",
        broker={"log.flush.interval.messages": "1"},
        topic={"flush.messages": "1"},
        producer={**_PRODUCER, "enable.idempotence": "true"},
        consumer=_CONSUMER,
    ),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing that is measured under every preset."""

    name: str
    title: str
    #: The client's options beside those of the preset.
    kind: str
    options: Mapping[str, object]
    figures: Mapping[str, str]


WORKLOADS = (
    Workload(
        "latency",
        "end to end at 1,000 messages a second",
        "latency",
        {"rate": 1000, "seconds": 8, "size": 100, "warmup_seconds": 1},
        {"p50_ms": "p50, ms", "p99_ms": "p99, ms", "p999_ms": "p99.9, ms"},
    ),
    Workload(
        "produce",
        "producing 1 KB messages",
        "produce",
        {"partitions": 1, "count": 1_000_000, "size": 1000, "seconds": _LONGEST_SECONDS},
        {"throughput_mb_s": "MB/s", "cpu_s_per_gb": "broker CPU, s/GB"},
    ),
    Workload(
        "consume",
        "consuming them from the beginning",
        "consume",
        {"partitions": 1, "size": 1000, "from_beginning": True, "seconds": 2 * _LONGEST_SECONDS},
        {"throughput_mb_s": "MB/s", "cpu_s_per_gb": "broker CPU, s/GB"},
    ),
    Workload(
        "one-by-one",
        "one message of 100 bytes at a time, each acknowledged before the next",
        "produce",
        {"partitions": 1, "count": 10_000, "size": 100, "one_message": True, "in_flight": 1, "seconds": 5},
        {"messages_s": "messages/s", "p99_ms": "p99, ms"},
    ),
)


class TunedTailrace(Tailrace):
    """`tailrace serve` with the broker settings of a preset."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = settings

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        command = self.command(data_dir, port)
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return ServerProcess(command, data_dir / "output")


def pairs(settings: Mapping[str, str]) -> str:
    """Settings as rdbench takes them."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def _client(workload: Workload, preset: Preset, handle: Handle, **more: object) -> list[str]:
    options: dict[str, object] = {**workload.options, **more}
    if workload.kind != "consume":
        options |= {"codec": _PAYLOAD, "producer": pairs(preset.producer)}
    if workload.kind != "produce":
        options["consumer"] = pairs(preset.consumer)
    topic = "produce" if workload.kind == "consume" else workload.name
    return rdbench(workload.kind, handle, topic, **options)


def measure(preset: Preset, scratch: Path) -> dict[str, Metrics]:
    """Start a broker with a preset on an empty directory, and run every workload once."""
    system = TunedTailrace(preset.broker)
    data_dir = Path(tempfile.mkdtemp(prefix=f"{preset.name}-", dir=scratch))
    results: dict[str, Metrics] = {}
    try:
        handle = system.start(data_dir)
        system.wait_ready()
        run_client(rdbench("produce", handle, "warm-up", partitions=1, count=100_000, size=1000, seconds=3))
        run_client(rdbench("consume", handle, "warm-up", partitions=1, count=10_000, from_beginning=True, seconds=3))
        produced = 0
        for workload in WORKLOADS:
            more = {"count": produced} if workload.kind == "consume" else {}
            metrics = measured(system, _client(workload, preset, handle, **more))
            if workload.name == "produce":
                produced = int(metrics["messages"])
            results[workload.name] = metrics
            os.sync()
    finally:
        system.stop()
        shutil.rmtree(data_dir)
        os.sync()
    return results


def run(rounds: int, scratch_parent: Path) -> dict[str, Any]:
    """Every preset in turn, as often as asked; who begins changes from round to round."""
    scratch_parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="presets-", dir=scratch_parent))
    samples: list[dict[str, Any]] = []
    started = time.monotonic()
    try:
        for turn in range(rounds):
            shift = turn % len(PRESETS)
            for preset in (*PRESETS[shift:], *PRESETS[:shift]):
                found = measure(preset, scratch)
                samples += [
                    {"preset": preset.name, "workload": name, "round": turn + 1, "metrics": metrics}
                    for name, metrics in found.items()
                ]
                minutes = (time.monotonic() - started) / 60
                shown = ", ".join(
                    f"{name} {figure} {number(found[name][figure])}"
                    for name, figure in ((item.name, next(iter(item.figures))) for item in WORKLOADS)
                )
                print(f"[{minutes:4.1f} min] round {turn + 1}/{rounds} {preset.name}: {shown}", flush=True)
        versions, _ = machine.describe_versions(["tailrace"])
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": (time.monotonic() - started) / 60,
            "rounds": rounds,
            "machine": machine.describe_machine(scratch),
            "versions": {name: versions[name] for name in ("tailrace", "librdkafka", "python")},
            "samples": samples,
        }
    finally:
        shutil.rmtree(scratch)


def values(results: Mapping[str, Any], preset: str, workload: str, figure: str) -> list[float]:
    """One figure over all rounds."""
    return [
        sample["metrics"][figure]
        for sample in results["samples"]
        if sample["preset"] == preset and sample["workload"] == workload and figure in sample["metrics"]
    ]


def cell(found: Sequence[float], default: Sequence[float]) -> str:
    """The median with half its spread and, beside the default, how many times that."""
    if not found:
        return "-"
    middle = statistics.median(found)
    text = f"{number(middle)} ±{spread(found) * 50:.0f}%"
    basis = statistics.median(default) if default else 0.0
    return text if found is default or not basis else f"{text} ({middle / basis:.2f}x)"


def figure_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """A row for each figure, a column for each preset."""
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


def noise_text(results: Mapping[str, Any]) -> str:
    """A word of warning where the runs differ so much that ratios near 1 mean nothing."""
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
    """The settings of every preset, ready to be copied."""
    parts: list[str] = []
    for preset in PRESETS[1:]:
        parts += [f"### {preset.name.capitalize()}: {preset.purpose}", "", "```properties"]
        changed = {
            "broker": preset.broker,
            "topic, instead of the broker": preset.topic,
            "producer (librdkafka's names)": _changed(preset.producer, _PRODUCER),
            "consumer (librdkafka's names)": _changed(preset.consumer, _CONSUMER),
        }
        for where, settings in changed.items():
            if settings:
                parts += [f"# {where}", *(f"{name}={value}" for name, value in settings.items())]
        parts += ["```", ""]
    return "\n".join(parts).rstrip()


def _changed(settings: Mapping[str, str], default: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if default.get(name) != value}


def generated_part(results: Mapping[str, Any]) -> str:
    """The part of the page that a run writes."""
    found = results["machine"]
    headings = ["measured", "figure", "better", *(preset.name for preset in PRESETS)]
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
            markdown_table(figure_rows(results), headings),
        ]
    )


def write_page(results_path: Path = RESULTS, page_path: Path = PAGE) -> None:
    """Exchange the generated part of the page; what people wrote around it stays."""
    page = page_path.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise SystemExit(f"{page_path} has no generated part, or more than one")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    generated = generated_part(json.loads(results_path.read_text(encoding="utf-8")))
    page_path.write_text(f"{head}{BEGIN}\n\n{generated}\n\n{END}{tail}", encoding="utf-8")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.presets", description="the presets of docs/tuning.md, measured")
    parser.add_argument("--rounds", type=int, default=3, help="how often each preset is measured (default 3)")
    parser.add_argument(
        "--docs", action="store_true", help="measure nothing, write docs/tuning.md from the last results"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the results file")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data", help="where all data is kept")
    options = parser.parse_args(arguments)
    if not options.docs:
        # A stopped benchmark must stop its broker too.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            results = run(options.rounds, options.scratch)
        except (ClientFailedError, ServerFailedError, OSError) as error:
            print(f"presets: {error}", file=sys.stderr)
            return 1
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.output == RESULTS:
        write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
