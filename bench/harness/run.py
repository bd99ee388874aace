"""One benchmark run: carries out a suite block by block, keeps every sample, writes the results.

Owns rounds, progress lines, the time limit and the handling of failures. If a workload or a system fails, that is
recorded and the run continues; everything that was started is stopped in any case.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Generic

from bench.harness import limits, report, results
from bench.harness.failures import EXPECTED, ClientFailedError
from bench.harness.plan import Estimate, make_plan
from bench.harness.ratios import Sample, has_better_side
from bench.harness.results import Outcome
from bench.harness.suite import Block, Figures, Suite, T, Workload


class Run(Generic[T]):
    """The state of one run: its plan, its samples, its clock."""

    def __init__(self, suite: Suite[T]) -> None:
        self.suite = suite
        self.outcome = Outcome()
        missing = suite.stage.missing(suite.systems)
        for name, reason in missing.items():
            self._skip(name, "all", reason)
        self.plan = make_plan(suite.groups, suite.rounds, [name for name in suite.systems if name not in missing])
        self._estimate = Estimate()
        self._started = time.monotonic()
        self._left = list(self.plan)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def run(self, scratch: Path) -> None:
        """Run every block that fits into the time limit."""
        if self.suite.touches_memory:
            limits.touch_memory()
        with self.suite.stage.shared(scratch, self._say_before):
            # Data that was written until now must not affect measurements.
            os.sync()
            for block in self.plan:
                self._left.pop(0)
                if not self._has_time(block):
                    reason = f"round {block.round} would have exceeded the time limit"
                    self._skip(block.system, block.group, reason)
                    continue
                if self.suite.measures_limits and len(self.outcome.limit_samples) < block.round:
                    self._say(block, "physical limits")
                    self.outcome.limit_samples.append(limits.measure(scratch))
                self._run_block(block, scratch)

    def _has_time(self, block: Block[T]) -> bool:
        limit = self.suite.limit_minutes
        return limit is None or self.elapsed + self._estimate.of_block(block) <= limit * 60

    def _run_block(self, block: Block[T], scratch: Path) -> None:
        stage = self.suite.stage
        directory = Path(tempfile.mkdtemp(prefix="block-", dir=scratch))
        step = "start"
        started = time.monotonic()
        try:
            with stage.block(block, directory, lambda text: self._say(block, text)) as target:
                for figures in stage.warm_up(target):
                    self._keep(block, figures)
                self._estimate.note(block.system, "start", time.monotonic() - started)
                for number, workload in enumerate(block.workloads):
                    step = workload.name
                    self._run_workload(block, workload, target, block.workloads[number + 1 :])
                stage.check_alive(target)
        except EXPECTED as error:
            self._fail(block, step, error)
        finally:
            shutil.rmtree(directory)
            # The next system must not pay for this one's unwritten pages.
            os.sync()

    def _run_workload(self, block: Block[T], workload: Workload[T], target: T, after: Sequence[Workload[T]]) -> None:
        started = time.monotonic()
        try:
            workload.prepare(target)
            for figures in workload.run(target):
                self._keep(block, figures)
                self._say(block, shown(figures, workload.judged_by), after, figures.system)
        except ClientFailedError as error:
            self.suite.stage.check_alive(target)
            self._fail(block, workload.name, error)
            return
        os.sync()
        self._estimate.note(block.system, workload.name, time.monotonic() - started)

    def _keep(self, block: Block[T], figures: Figures) -> None:
        sample = Sample(figures.system or block.system, figures.workload, block.round, figures.metrics)
        self.outcome.samples.append(sample)

    def _skip(self, system: str, workload: str, reason: str) -> None:
        self.outcome.skipped.append({"system": system, "workload": workload, "reason": reason})

    def _fail(self, block: Block[T], step: str, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        failure = {"system": block.system, "workload": step, "reason": reason, "round": block.round}
        self.outcome.failures.append(failure)
        self._say(block, f"{step} FAILED: {reason}")

    def _say(
        self, block: Block[T], text: str, after: Sequence[Workload[T]] | None = None, system: str | None = None
    ) -> None:
        times = f"{self.elapsed / 60:5.1f} min"
        if self.suite.limit_minutes is not None:
            here = self._estimate.of_steps(block.system, block.workloads if after is None else after)
            left = here + sum(self._estimate.of_block(other) for other in self._left)
            left = min(left, max(self.suite.limit_minutes * 60 - self.elapsed, 0))
            times += f", about {left / 60:4.1f} left"
        print(f"[{times}] round {block.round}/{self.suite.rounds} {system or block.system}: {text}", flush=True)

    def _say_before(self, text: str) -> None:
        print(f"[{self.elapsed / 60:5.1f} min] {text}", flush=True)


def shown(figures: Figures, judged_by: Sequence[str]) -> str:
    """Format a measurement for a progress line."""
    metrics = figures.metrics
    names = [name for name in judged_by if name in metrics] or [name for name in metrics if has_better_side(name)]
    return f"{figures.workload}: " + ", ".join(f"{name} {report.number(metrics[name])}" for name in names)


def execute(suite: Suite[T], scratch_parent: Path) -> int:
    """Run a suite, print and write its results; return 1 if anything failed."""
    scratch_parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{suite.name}-", dir=scratch_parent))
    try:
        run = Run(suite)
        run.run(scratch)
        found = results.assemble(suite, run.outcome, run.elapsed / 60, scratch)
    except EXPECTED as error:
        print(f"bench {suite.name}: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch)
    written = results.write(suite, found)
    print("\n" + suite.summary(found))
    print(f"\n{run.elapsed / 60:.1f} minutes; wrote {' and '.join(map(str, written))}")
    if run.outcome.failures:
        print(f"{len(run.outcome.failures)} workloads failed", file=sys.stderr)
    elif suite.page is not None and suite.output == suite.page.results and not suite.page.refusal(found):
        suite.page.write()
    return int(bool(run.outcome.failures))
