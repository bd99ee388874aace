"""kafka-python's own integration tests; pytest collects and runs them from the source distribution."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from suites.expectations import Outcome, Result
from suites.processes import Command, Ended, ProcessGroups, Unit

FOLDER = "test/integration"
COLLECT_SECONDS = 120
LIMIT_SECONDS = 120
#: The broker version that the suite is told: it decides which tests apply.
KAFKA_VERSION = "4.3.0"


class KafkaPython:
    """Runs every test in a process of its own, so that a test that hangs affects no other."""

    name = "kafka-python"
    scenarios = ("default",)
    #: Tests of groups use short sessions.
    broker_config: Mapping[str, str] = {"group.min.session.timeout.ms": "1000"}

    def __init__(self, home: Path, output: Path) -> None:
        self._source = home / "source"
        self._python = home / "venv/bin/python"
        self._output = output

    def _environment(self, bootstrap: str) -> dict[str, str]:
        # With an external broker, KAFKA_ROOT only has to exist.
        return {"KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": str(self._source)}

    def units(self, processes: ProcessGroups) -> list[Unit]:
        """Return every test that pytest collects."""
        arguments = [str(self._python), "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", FOLDER]
        output = self._output / "collect.txt"
        ended = processes.run(
            Command(arguments, self._source, output, self._environment("127.0.0.1:1")), COLLECT_SECONDS
        )
        names = [line.strip() for line in ended.output.splitlines() if line.startswith(FOLDER) and "::" in line]
        if ended.code != 0 or not names:
            raise RuntimeError(f"pytest could not collect kafka-python's tests: see {output}")
        return [Unit(name.removeprefix(FOLDER + "/"), (name.removeprefix(FOLDER + "/"),)) for name in names]

    def limit_seconds(self, unit: Unit) -> float:
        """Return how long one test may take."""
        return LIMIT_SECONDS

    def command(self, unit: Unit, bootstraps: Mapping[str, str], scratch: Path) -> Command:
        """Return the command that runs one test."""
        arguments = [str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        arguments += [f"--junitxml={self._report(scratch)}", f"{FOLDER}/{unit.key}"]
        file_name = unit.key.replace("/", ".").replace("::", ".")[:200] + ".txt"
        return Command(arguments, self._source, self._output / file_name, self._environment(bootstraps["default"]))

    def results(self, unit: Unit, ended: Ended, scratch: Path) -> list[Result]:
        """Read the result of the test from pytest's report."""
        report = self._report(scratch)
        text = report.read_text(errors="replace") if report.exists() else ""
        outcome, detail = outcome_of_report(text)
        if ended.code is None:
            outcome, detail = Outcome.FAILED, "did not finish within the time limit"
        return [Result(unit.key, outcome, ended.seconds, detail)]

    @staticmethod
    def _report(scratch: Path) -> Path:
        return scratch / "report.xml"


def outcome_of_report(text: str) -> tuple[Outcome, str]:
    """Return the outcome of the single test in a JUnit report, and the first line of why it did not pass."""
    if not text.strip():
        return Outcome.FAILED, "pytest ended without a report"
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    for tag, outcome in (("error", Outcome.FAILED), ("failure", Outcome.FAILED), ("skipped", Outcome.SKIPPED)):
        for case in cases:
            if (element := case.find(tag)) is not None:
                return outcome, element.get("message", "").partition("\n")[0]
    return (Outcome.PASSED, "") if cases else (Outcome.FAILED, "pytest ran no test")
