"""librdkafka's own test suite: the tests named in `tests/test.c`, run by its `test-runner`.

Leaves out tests that use no broker: those flagged as local, and those against librdkafka's own mock cluster. The runner
selects tests by number, so tests that share a number run as one unit. Tests that need a broker without automatic topic
creation (the scenario `noautocreate` of the suite) run in a separate unit, against such a broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from suites.expectations import Outcome, Result
from suites.processes import Command, Ended, ProcessGroups, Unit

KAFKA_VERSION = "4.1.0"
KAFKA_SCRIPTS = Path(__file__).resolve().parent / "kafka"
DEFAULT_SCENARIO = "default"
LIMIT_SECONDS = 240
#: Limits of tests with many subtests that wait for rebalances.
LONG_LIMITS = {"0113": 900}
LEFT_OUT_FLAGS = ("TEST_F_LOCAL", "TEST_F_MANUAL")

_ENTRY = re.compile(r"_TEST\(\s*(\d{4}_\w+)\s*,(.*?)(?=_TEST\(|\{\s*NULL\s*\})", re.DOTALL)
_SCENARIO = re.compile(r'\.scenario\s*=\s*"([^"]*)"')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*([A-Z]+)\s*\|\s*([0-9.]+)s\s*\|(.*)$", re.MULTILINE)
_OUTCOMES = {"PASSED": Outcome.PASSED, "SKIPPED": Outcome.SKIPPED}


class Librdkafka:
    """Runs one process for each test number and scenario.

    Does not use the runner's quick mode: it silently skips most subtests, and a test without any subtest passes.
    """

    name = "librdkafka"
    scenarios = (DEFAULT_SCENARIO, "noautocreate")
    #: The test of compaction waits for it repeatedly.
    broker_config: Mapping[str, str] = {"log.cleaner.backoff.ms": "1000"}

    def __init__(self, home: Path, output: Path) -> None:
        self._source = home / "source"
        self._output = output

    def units(self, processes: ProcessGroups) -> list[Unit]:
        """Return every test that uses a broker."""
        return units_of_source((self._source / "tests/test.c").read_text())

    def limit_seconds(self, unit: Unit) -> float:
        """Return how long the tests of one number may take."""
        return LONG_LIMITS.get(unit.key[:4], LIMIT_SECONDS)

    def command(self, unit: Unit, bootstraps: Mapping[str, str], scratch: Path) -> Command:
        """Return the command that runs the tests of one number."""
        number, scenario = unit.key.split(" ")
        # Tests look for their files relative to their place in the sources.
        directory = scratch / "tests"
        directory.mkdir()
        (scratch / "src").symlink_to(self._source / "src")
        configuration = directory / "test.conf"
        configuration.write_text(f"bootstrap.servers={bootstraps[scenario]}\nbroker.address.family=v4\n")
        environment = {
            "TESTS": number,
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "TEST_SCENARIO": scenario,
            "RDKAFKA_TEST_CONF": str(configuration),
            "KAFKA_PATH": str(KAFKA_SCRIPTS),
            "BROKERS": bootstraps[scenario],
            "LD_LIBRARY_PATH": f"{self._source / 'src'}:{self._source / 'src-cpp'}",
        }
        # Line-buffered: otherwise the summary is lost if the runner aborts.
        arguments = ["stdbuf", "-oL", str(self._source / "tests/test-runner"), "-p1", "-L"]
        output = self._output / f"{number}-{scenario}.txt"
        return Command(arguments, directory, output, environment)

    def results(self, unit: Unit, ended: Ended, scratch: Path) -> list[Result]:
        """Read the results of the tests of the number from the runner's summary."""
        return results_of_summary(unit, ended)


def units_of_source(text: str) -> list[Unit]:
    """Return the units of the table of tests in `test.c`, in its order."""
    _, found, table = text.partition("struct test tests[] = {")
    if not found:
        raise RuntimeError("tests/test.c has no table of tests: expected `struct test tests[]`")
    names: dict[str, list[str]] = {}
    for name, body in _ENTRY.findall(table):
        if name.endswith("_mock") or any(flag in body for flag in LEFT_OUT_FLAGS):
            continue
        named = _SCENARIO.search(body)
        scenario = DEFAULT_SCENARIO if named is None or DEFAULT_SCENARIO in named[1] else named[1]
        names.setdefault(f"{name[:4]} {scenario}", []).append(name)
    return [Unit(key, tuple(those)) for key, those in names.items()]


def results_of_summary(unit: Unit, ended: Ended) -> list[Result]:
    """Return one result for each test of the unit; a test that the summary does not name failed with the process."""
    said = {}
    for name, state, seconds, detail in _SUMMARY.findall(_COLOUR.sub("", ended.output)):
        said[name] = Result(name, _OUTCOMES.get(state, Outcome.FAILED), float(seconds), detail.strip())
    how = _how_it_ended(ended)
    results = [said.get(name, Result(name, Outcome.FAILED, ended.seconds, how)) for name in unit.names]
    if ended.code != 0 and all(result.outcome is not Outcome.FAILED for result in results):
        # After the summary, the runner reports threads or objects that the library could not free.
        return [Result(r.name, Outcome.FAILED, r.seconds, f"passed, but then the runner {how}") for r in results]
    return results


def _how_it_ended(ended: Ended) -> str:
    if ended.code is None:
        return "did not finish within the time limit"
    return f"was ended by signal {-ended.code}" if ended.code < 0 else f"ended with exit code {ended.code}"
