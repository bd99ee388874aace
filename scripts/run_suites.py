#!/usr/bin/env python3
"""Run the clients' own test suites against a broker and compare the results with the lists in suites/expected.

Several tests run at a time. If a test fails that should pass, it runs once more, alone, and the output says so.
The exit code is 1 if any result differs from the list, in either direction.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from suites.expectations import (  # noqa: E402
    PASS,
    Outcome,
    Problem,
    Result,
    format_list,
    heading_of,
    judge,
    parse_list,
    problem_of,
    summary,
    updated,
)
from suites.kafka_python import KafkaPython  # noqa: E402
from suites.librdkafka import Librdkafka  # noqa: E402
from suites.processes import Ended, ProcessGroups, Unit, run_units  # noqa: E402
from tests.support.brokers.broker_process import BrokerProcess, free_port  # noqa: E402

HOME = ROOT / ".cache/suites"
EXPECTED = ROOT / "suites/expected"
SUITES = {suite.name: suite for suite in (KafkaPython, Librdkafka)}

#: The broker configuration that the authors of the suites use; some tests check it.
BROKER_CONFIG = {"node.id": "0", "num.partitions": "4"}
SCENARIO_CONFIG = {"default": {}, "noautocreate": {"auto.create.topics.enable": "false"}}

#: Most tests wait most of the time. A test that fails under the load of others gets a second try, alone.
AT_ONCE = 4


class SuiteRun:
    """A run of one suite: its units, their results so far, and the progress lines."""

    def __init__(
        self, suite: KafkaPython | Librdkafka, processes: ProcessGroups, bootstraps: Mapping[str, str]
    ) -> None:
        self.name = suite.name
        self._suite = suite
        self._processes = processes
        self._bootstraps = bootstraps
        self._list = EXPECTED / f"{suite.name}.txt"
        text = self._list.read_text() if self._list.exists() else ""
        self._heading = heading_of(text)
        self.expected = parse_list(text)
        self.units = suite.units(processes)
        self.results: dict[str, Result] = {}
        self._second_try: set[str] = set()
        self._chosen = 0

    def run(self, wanted: Sequence[str]) -> None:
        """Run the tests whose names contain one of the wanted words, or all tests."""
        chosen = [u for u in self.units if not wanted or any(word in name for name in u.names for word in wanted)]
        self._chosen = sum(len(unit.names) for unit in chosen)
        # Tests that may take long start first, so that the others run beside them.
        self._run(sorted(chosen, key=self._suite.limit_seconds, reverse=True), AT_ONCE)
        failed = [unit for unit in chosen if any(self._failed_unexpectedly(name) for name in unit.names)]
        if failed:
            print(f"  retrying one after another: {', '.join(unit.key for unit in failed)}", flush=True)
            self._second_try = {name for unit in failed for name in unit.names}
            self._run(failed, 1)

    def _failed_unexpectedly(self, name: str) -> bool:
        return self.expected.get(name) == PASS and self.results[name].outcome is Outcome.FAILED

    def _run(self, units: Sequence[Unit], at_once: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tailrace-suite-") as scratch:
            places = {unit.key: Path(scratch) / str(number) for number, unit in enumerate(units)}

            def run(unit: Unit) -> Ended:
                places[unit.key].mkdir()
                command = self._suite.command(unit, self._bootstraps, places[unit.key])
                return self._processes.run(command, self._suite.limit_seconds(unit))

            def done(unit: Unit, ended: Ended) -> None:
                for result in self._suite.results(unit, ended, places[unit.key]):
                    self.results[result.name] = result
                    self._show(result)

            run_units(units, run, done, at_once, self._processes.stop)

    def _show(self, result: Result) -> None:
        word = self.expected.get(result.name)
        mark = "!" if problem_of(word, result.outcome) else " "
        said = "" if word in (None, PASS) else f" ({word})"
        again = " on the second try" if result.name in self._second_try else ""
        progress = f"{len(self.results):3} of {self._chosen}"
        print(f"{mark} {progress}  {result.outcome:<7} {result.seconds:6.1f} s  {result.name}{said}{again}", flush=True)

    def problems(self, whole: bool) -> list[Problem]:
        """Return where the run and the list differ; lines without a test count only if the whole suite ran."""
        return judge(self.expected, self.results.values(), self._names() if whole else None)

    def update(self) -> None:
        """Rewrite the list from the results of this run."""
        words = updated(self.expected, self.results.values(), self._names())
        self._list.write_text(format_list(words, self._heading))

    def summary(self) -> str:
        return summary(self.expected, list(self.results.values()))

    def _names(self) -> list[str]:
        return [name for unit in self.units for name in unit.names]


@contextmanager
def running_brokers(suite: KafkaPython | Librdkafka, data: Path) -> Iterator[dict[str, str]]:
    """Run a broker for each scenario of the suite; yield the addresses by scenario."""
    with ExitStack() as stack:
        bootstraps = {}
        for scenario in suite.scenarios:
            port = free_port()
            config = BROKER_CONFIG | dict(suite.broker_config) | SCENARIO_CONFIG[scenario]
            config |= {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
            broker = stack.enter_context(BrokerProcess(data / scenario, port=port, config=config))
            bootstraps[scenario] = broker.bootstrap
        yield bootstraps


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="run_suites", description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*", help="run only tests whose names contain one of these: 0012, test_producer")
    parser.add_argument("-k", dest="word", action="append", default=[], help="the same, with the option of pytest")
    parser.add_argument(
        "--suites", nargs="+", choices=list(SUITES), default=list(SUITES), metavar="NAME", help="run these suites"
    )
    parser.add_argument("--update", action="store_true", help="rewrite suites/expected from the results of this run")
    options = parser.parse_args()
    wanted = [*options.tests, *options.word]
    signal.signal(signal.SIGTERM, interrupt)

    processes = ProcessGroups()
    runs: list[tuple[SuiteRun, float]] = []
    started = time.monotonic()
    try:
        for name in options.suites:
            print(f"\n=== {name}", flush=True)
            suite = SUITES[name](HOME / name, HOME / "output" / name)
            began = time.monotonic()
            with (
                tempfile.TemporaryDirectory(prefix="tailrace-suite-data-") as data,
                running_brokers(suite, Path(data)) as bootstraps,
            ):
                run = SuiteRun(suite, processes, bootstraps)
                run.run(wanted)
            runs.append((run, (time.monotonic() - began) / 60))
    except KeyboardInterrupt:
        print("run_suites: interrupted", file=sys.stderr)
        return 130

    wrong = 0
    print("\nsuite         minutes  result")
    for run, minutes in runs:
        print(f"{run.name:<12} {minutes:8.1f}  {run.summary()}")
    print(f"{'all':<12} {(time.monotonic() - started) / 60:8.1f}")
    for run, _ in runs:
        problems = run.problems(whole=not wanted)
        wrong += len(problems)
        for problem in problems:
            print(f"! {run.name}: {problem.name}: {problem.text}")
        if options.update:
            run.update()
    if not any(run.results for run, _ in runs):
        print(f"run_suites: no test name contains {' or '.join(wanted)}", file=sys.stderr)
        return 2
    if wrong:
        print(f"\n{wrong} results differ from suites/expected; see the output of the tests in {HOME / 'output'}")
    else:
        print("\nAll results are as expected.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
