"""One benchmark run: starts each system in turn, runs its workloads, keeps every sample, writes the results.

Owns the time limit, the progress lines and the results' shape. A failing workload or system is recorded and the run
goes on; whatever was started is stopped in every case.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.clients.programs import ClientFailedError, rawbench, run_client
from bench.harness import chart, limits, machine
from bench.harness.plan import Block, Estimate, make_plan
from bench.harness.processes import ServerFailedError
from bench.harness.ratios import Sample, compute_ratios, compute_scaling, compute_shares
from bench.systems import SYSTEMS
from bench.systems.system import Handle, System
from bench.workloads.single import (
    LONGEST_SECONDS,
    PEER_GROUP,
    START,
    START_FIGURES,
    RawProduce,
    Target,
    Workload,
)
from bench.workloads.warm_up import warm_up

FIRST_ACK_TIMEOUT_SECONDS = 60
#: Each axis maps its points to the workload there; all else is the same.
SCALING_AXES = {
    "partitions": {number: RawProduce(partitions=number).name for number in (1, 100, 1000)},
    "idle connections": {number: RawProduce(idle_connections=number).name for number in (0, 100, 1000)},
}

Expected = (ClientFailedError, ServerFailedError, OSError, subprocess.SubprocessError)


class Run:
    """The state of one run: its plan, its samples, its clock."""

    def __init__(
        self,
        mode: str,
        groups: Mapping[str, tuple[Workload, ...]],
        rounds: int,
        peer_rounds: int,
        scale: float,
        limit_minutes: float,
        systems: Sequence[str],
    ) -> None:
        self.mode = mode
        self.rounds = rounds
        self.scale = scale
        self.samples: list[Sample] = []
        self.limit_samples: list[dict[str, float]] = []
        self.failures: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.versions, missing = machine.describe_versions(list(systems))
        self.skipped += [{"system": name, "workload": "all", "reason": reason} for name, reason in missing.items()]
        present = [name for name in systems if name not in missing]
        self.plan = make_plan(groups, PEER_GROUP, rounds, peer_rounds, present)
        self._estimate = Estimate()
        self._limit_seconds = limit_minutes * 60
        self._started = time.monotonic()
        self._left: list[Block] = list(self.plan)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def run(self, scratch: Path) -> None:
        """Run every block for which there is time."""
        limits.touch_memory()
        for block in self.plan:
            self._left.pop(0)
            if self.elapsed + self._estimate.of_block(block) > self._limit_seconds:
                reason = f"round {block.round} would have gone over the time limit"
                self.skipped.append({"system": block.system, "workload": block.group, "reason": reason})
                continue
            if block == self.plan[0] or len(self.limit_samples) < block.round:
                self._say(block, "physical limits")
                self.limit_samples.append(limits.measure(scratch))
            self._run_block(block, scratch)

    def _run_block(self, block: Block, scratch: Path) -> None:
        system = SYSTEMS[block.system]()
        data_dir = Path(tempfile.mkdtemp(prefix=f"{block.system}-", dir=scratch))
        step = "start"
        self._say(block, step)
        started = time.monotonic()
        try:
            target = Target(system, system.start(data_dir), data_dir, self.scale)
            self._start(block, target)
            self._estimate.note(block.system, "start", time.monotonic() - started)
            for number, workload in enumerate(block.workloads):
                step = workload.name
                self._run_workload(block, workload, target, block.workloads[number + 1 :])
        except Expected as error:
            self._fail(block, step, error)
        finally:
            system.stop()
            shutil.rmtree(data_dir)
            # The next system must not pay for pages that this one left to be written.
            os.sync()

    def _start(self, block: Block, target: Target) -> None:
        system = target.system
        if not system.speaks_kafka:
            system.wait_ready()
            return
        seconds = first_ack_seconds(system, target.handle)
        metrics = {"first_ack_s": seconds, "rss_mb": system.rss_mb(), "pss_mb": system.pss_mb()}
        self._say(block, f"first acknowledged record after {seconds:.2f} s, RSS {metrics['rss_mb']:.0f} MB; warm-up")
        costs = warm_up(system, target.handle)
        metrics |= {"warm_up_runs": len(costs), "warm_up_first_us": costs[0], "warm_up_last_us": costs[-1]}
        self.samples.append(Sample(block.system, START, block.round, metrics))
        self._say(block, f"warm after {len(costs)} runs: {costs[0]:.0f} to {costs[-1]:.0f} CPU µs a request")

    def _run_workload(self, block: Block, workload: Workload, target: Target, after: Sequence[Workload]) -> None:
        started = time.monotonic()
        try:
            metrics = workload.run(target)
        except ClientFailedError as error:
            target.system.server.check_alive()
            self._fail(block, workload.name, error)
            return
        os.sync()
        self._estimate.note(block.system, workload.name, time.monotonic() - started)
        self.samples.append(Sample(block.system, workload.name, block.round, metrics))
        figures = [f"{name} {report.number(metrics[name])}" for name in workload.judged_by if name in metrics]
        self._say(block, f"{workload.name}: {', '.join(figures)}", after)

    def _fail(self, block: Block, step: str, error: BaseException) -> None:
        self.failures.append({"system": block.system, "workload": step, "reason": str(error), "round": block.round})
        self._say(block, f"{step} FAILED: {error}")

    def _say(self, block: Block, text: str, after: Sequence[Workload] | None = None) -> None:
        here = self._estimate.of_steps(block.system, block.workloads if after is None else after)
        left = here + sum(self._estimate.of_block(other) for other in self._left)
        left = min(left, max(self._limit_seconds - self.elapsed, 0))
        times = f"{self.elapsed / 60:5.1f} min, about {left / 60:4.1f} left"
        print(f"[{times}] round {block.round}/{self.rounds} {block.system}: {text}", flush=True)

    def results(self, scratch: Path) -> dict[str, Any]:
        """Everything that is written to the results file."""
        workloads = {item.name: item for block in self.plan for item in block.workloads}
        judged_by = {START: START_FIGURES, **{name: workload.judged_by for name, workload in workloads.items()}}
        bounded_by = {name: workload.bounded_by for name, workload in workloads.items()}
        medians = {
            name: statistics.median(sample[name] for sample in self.limit_samples) for name in self.limit_samples[0]
        }
        return {
            "mode": self.mode,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": self.elapsed / 60,
            "machine": machine.describe_machine(scratch),
            "versions": self.versions,
            "settings": {
                "rounds": self.rounds,
                "scale": self.scale,
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
            "limits": medians,
            "limit_samples": self.limit_samples,
            "ratios": compute_ratios(self.samples, judged_by),
            "shares": compute_shares(self.samples, medians, bounded_by),
            "scaling": compute_scaling(self.samples, SCALING_AXES),
            "skipped": self.skipped,
            "failures": self.failures,
            "samples": [
                {
                    "system": sample.system,
                    "workload": sample.workload,
                    "round": sample.round,
                    "metrics": dict(sample.metrics),
                }
                for sample in self.samples
            ],
        }


def first_ack_seconds(system: System, handle: Handle) -> float:
    """From the start of the process to the first record it acknowledged, asked for again and again."""
    system.wait_ready()
    options = {"partitions": 1, "connections": 1, "batch_bytes": 200, "records_per_batch": 1}
    command = rawbench("produce", handle, "first", **options, in_flight=1, requests=1)
    deadline = system.server.started_at + FIRST_ACK_TIMEOUT_SECONDS
    while True:
        try:
            run_client(command)
            return time.monotonic() - system.server.started_at
        except ClientFailedError:
            system.server.check_alive()
            if time.monotonic() > deadline:
                raise


def write_results(results: dict[str, Any], json_path: Path) -> None:
    """The results file and the chart beside it."""
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(json.dumps(results, indent=1) + "\n")
    title = f"How many times better tailrace {results['versions'].get('tailrace', '')} is ({results['mode']} run)"
    json_path.with_suffix(".svg").write_text(chart.render(results["ratios"], title))


def execute(run: Run, scratch_parent: Path, json_path: Path) -> int:
    """Run it, print and write what it found; 1 if anything failed."""
    scratch_parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch_parent))
    try:
        run.run(scratch)
        results = run.results(scratch)
    finally:
        shutil.rmtree(scratch)
    write_results(results, json_path)
    print("\n" + report.summary(results))
    print(f"\n{run.elapsed / 60:.1f} minutes; wrote {json_path} and {json_path.with_suffix('.svg').name}")
    if run.failures:
        print(f"{len(run.failures)} workloads failed", file=sys.stderr)
    return int(bool(run.failures))
