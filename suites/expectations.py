"""Compares the results of a suite with a list of expected results. Pure: no files, no processes.

A list has one line per test: a word and the test's name. The word is `pass`, `skipped` for a test that its own suite
skips, or the reason why it does not pass yet. Every difference is a problem, in both directions: if a test passes
although its line gives a reason, the list is out of date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

PASS = "pass"
SKIPPED = "skipped"

#: The words for tests that do not pass, each with its meaning.
REASONS: Mapping[str, str] = {
    "groups": "needs consumer groups or committed offsets",
    "transactions": "needs transactions",
    "sasl": "needs SASL authentication",
    "tls": "needs TLS",
    "acls": "needs access control lists",
    "quotas": "needs client quotas",
    "admin": "needs an admin API that is not served yet",
    "brokers": "needs more than one broker",
    "kafka-scripts": "starts Kafka's own scripts or servers",
    "kraft": "inspects Kafka's own controller quorum",
    "suite": "cannot pass here, or not reliably, whatever the broker does: see docs/findings.md",
    "bug": "the broker answers wrongly",
}


class Outcome(StrEnum):
    """The outcome of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One test's outcome, with the first line of its message if it did not pass."""

    name: str
    outcome: Outcome
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """A test whose outcome differs from its line, or a line without a test."""

    name: str
    text: str


class ListError(ValueError):
    """A list of expectations cannot be read."""


def parse_list(text: str) -> dict[str, str]:
    """Parse the word for each test, in the order of the lines; ignore empty lines and those that begin with #."""
    words: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, name = line.strip().partition(" ")
        name = name.strip()
        if not name:
            raise ListError(f"line {number}: expected a word and a test's name, not {line!r}")
        if word not in (PASS, SKIPPED) and word not in REASONS:
            raise ListError(f"line {number}: {word!r} is not one of: {', '.join([PASS, SKIPPED, *REASONS])}")
        if name in words:
            raise ListError(f"line {number}: {name} has a line already")
        words[name] = word
    return words


def format_list(words: Mapping[str, str], heading: str) -> str:
    """Format a list for `parse_list`, with the heading as comments at the top."""
    width = max((len(word) for word in words.values()), default=0)
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    return "\n".join([*lines, *(f"{word:<{width}} {name}" for name, word in words.items())]) + "\n"


def heading_of(text: str) -> str:
    """Return the comments at the top of a list, without their # signs."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines)


def problem_of(expected: str | None, outcome: Outcome) -> str | None:
    """Return what is wrong with an outcome, given the word on the test's line, if any; None if nothing is wrong."""
    if expected is None:
        return f"{outcome}, but has no line in the list: add one"
    if expected == PASS:
        return None if outcome is Outcome.PASSED else f"{outcome}, but is expected to pass"
    if outcome is Outcome.PASSED:
        return f"now passes, update the list (it says {expected})"
    if expected == SKIPPED and outcome is Outcome.FAILED:
        return "failed, but is expected to be skipped by its suite"
    return None


def judge(
    expected: Mapping[str, str], results: Iterable[Result], existing: Iterable[str] | None = None
) -> list[Problem]:
    """Return all differences; pass every test of the suite as `existing` to also find lines without a test."""
    problems = []
    for result in results:
        text = problem_of(expected.get(result.name), result.outcome)
        if text is not None:
            problems.append(Problem(result.name, text + (f": {result.detail}" if result.detail else "")))
    if existing is not None:
        names = set(existing)
        problems += [
            Problem(name, "is no longer in the suite: remove its line") for name in expected if name not in names
        ]
    return problems


def updated(expected: Mapping[str, str], results: Iterable[Result], existing: Sequence[str]) -> dict[str, str]:
    """Return a list that matches these results, in the suite's order; a failure without a known reason is a bug."""
    outcomes = {result.name: result.outcome for result in results}
    words = {}
    for name in existing:
        before = expected.get(name)
        outcome = outcomes.get(name)
        if outcome is None:
            if before is not None:
                words[name] = before
        elif outcome is Outcome.PASSED:
            words[name] = PASS
        elif before is not None and before in REASONS:
            words[name] = before
        else:
            words[name] = SKIPPED if outcome is Outcome.SKIPPED else "bug"
    return words


def summary(expected: Mapping[str, str], results: Sequence[Result]) -> str:
    """Summarize in one line how many tests passed, and how many did not pass for each reason."""
    passed = sum(result.outcome is Outcome.PASSED for result in results)
    others = Counter(
        expected.get(result.name, "no line")
        for result in results
        if result.outcome is not Outcome.PASSED and expected.get(result.name) != PASS
    )
    reasons = ", ".join(f"{word} {count}" for word, count in others.most_common())
    return f"{passed} of {len(results)} passed" + (f"; not yet: {reasons}" if reasons else "")
