"""Reads the results of tests from pytest's JUnit files, and formats the tables at the end of a run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.testrun.pieces import Piece

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SLOWEST = 10
#: The prefix of lines in which pytest says why a test failed, and how many of them a summary repeats.
_REASON = "E   "
_REASONS = 12

#: The module of a test file, at the start of what a JUnit file calls the class.
_MODULE = re.compile(r"(?:\w+\.)*?test_\w+")

#: Exit codes of pytest.
OK, TESTS_FAILED, NOTHING_COLLECTED = 0, 1, 5


@dataclass(frozen=True, slots=True)
class Test:
    """The result of one test."""

    file: str
    name: str
    seconds: float
    outcome: str
    reason: str = ""

    @property
    def title(self) -> str:
        return f"{self.file.removeprefix('tests/')}::{self.name}"


@dataclass(slots=True)
class Outcome:
    """The result of a piece."""

    piece: Piece
    code: int
    seconds: float
    cpu_seconds: float
    log: Path
    tests: list[Test] = field(default_factory=list)
    #: Tests that failed beside others and passed alone.
    unstable: list[str] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        return self.code in (OK, NOTHING_COLLECTED)

    def count(self, outcome: str) -> int:
        return sum(test.outcome == outcome for test in self.tests)


def read_tests(junit: Path) -> list[Test]:
    """Read the tests of a JUnit file; none if pytest ended before it wrote one."""
    try:
        return [_test(case) for case in ElementTree.parse(junit).iter("testcase")]
    except (FileNotFoundError, ElementTree.ParseError):
        return []


def _test(case: ElementTree.Element) -> Test:
    outcome, reason = PASSED, ""
    for child in case:
        if child.tag in ("failure", "error"):
            outcome, reason = FAILED, _reason(child)
        elif child.tag == "skipped":
            outcome = SKIPPED
    # Not from the attribute `file`: for a test that a class inherits, that is the file of the base class. For state
    # machines, it is a file of Hypothesis.
    within = case.get("classname", "")
    found = _MODULE.match(within)
    file = case.get("file", "")
    if found:
        file = f"{found[0].replace('.', '/')}.py"
        # A class comes between the module's dotted name and the test.
        within = within.removeprefix(found[0]).strip(".")
    name = "::".join(filter(None, [within.replace(".", "::"), case.get("name", "")]))
    return Test(file, name, float(case.get("time", 0)), outcome, reason)


def _reason(failure: ElementTree.Element) -> str:
    lines = [line for line in (failure.text or "").splitlines() if line.startswith(_REASON)]
    return "\n".join(lines[:_REASONS]) or f"{_REASON}{failure.get('message', '')}"


def seconds_by_file(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Return how long the tests of each file took."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for outcome in outcomes:
        for test in outcome.tests:
            seconds[test.file] += test.seconds
    return dict(seconds)


def folder_table(outcomes: Sequence[Outcome], wall_seconds: float, cores: int) -> str:
    """Format where the time went, folder by folder; the last column is how many cores its pieces kept busy."""
    lines = ["folder        tests  failed  skipped  pieces  minutes  CPU min   load"]
    row = "{:<12} {:>6} {:>7} {:>8} {:>7} {:>8.1f} {:>8.1f} {:>6.2f}"
    for name in dict.fromkeys(outcome.piece.folder.name for outcome in outcomes):
        of_folder = [outcome for outcome in outcomes if outcome.piece.folder.name == name]
        seconds, cpu = sum(o.seconds for o in of_folder), sum(o.cpu_seconds for o in of_folder)
        lines.append(row.format(name, *_counts(of_folder), seconds / 60, cpu / 60, cpu / max(seconds, 1e-9)))
    cpu = sum(outcome.cpu_seconds for outcome in outcomes)
    lines.append(row.format("all", *_counts(outcomes), wall_seconds / 60, cpu / 60, cpu / max(wall_seconds, 1e-9)))
    lines.append(f"{cpu / max(wall_seconds, 1e-9) / cores:.0%} of {cores} cores were used.")
    return "\n".join(lines)


def _counts(outcomes: Sequence[Outcome]) -> tuple[int, int, int, int]:
    tests = sum(len(outcome.tests) for outcome in outcomes)
    failed, skipped = (sum(outcome.count(kind) for outcome in outcomes) for kind in (FAILED, SKIPPED))
    return tests, failed, skipped, len(outcomes)


def slowest_table(outcomes: Iterable[Outcome]) -> str:
    """Format the tests that took longest."""
    tests = sorted((test for outcome in outcomes for test in outcome.tests), key=lambda test: -test.seconds)
    return "\n".join(["slowest tests", *(f"{test.seconds:7.1f} s  {test.title}" for test in tests[:SLOWEST])])


def failure_summary(outcomes: Iterable[Outcome]) -> str:
    """Format the names of failed tests and why they failed, for readers who see only the end of the output."""
    lines = []
    for outcome in outcomes:
        if outcome.has_passed:
            continue
        failed = [test for test in outcome.tests if test.outcome == FAILED]
        for test in failed:
            lines += [f"FAILED {test.title}", test.reason]
        if not failed:
            lines.append(f"FAILED {outcome.piece.name}: pytest ended with {outcome.code}; see {outcome.log}")
    return "\n".join(lines)
