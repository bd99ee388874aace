"""How the report of one of kafka-python's tests is read."""

from __future__ import annotations

import pytest

from suites.expectations import Outcome
from suites.kafka_python import outcome_of_report


def report(*inside: str) -> str:
    cases = "".join(f'<testcase classname="t" name="test_a" time="0.1">{text}</testcase>' for text in inside)
    return (
        f'<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">{cases}</testsuite></testsuites>'
    )


@pytest.mark.parametrize(
    ("text", "outcome", "detail"),
    [
        (report(""), Outcome.PASSED, ""),
        (report('<failure message="no&#10;leader">trace</failure>'), Outcome.FAILED, "no"),
        (report('<skipped type="pytest.skip" message="old">where</skipped>'), Outcome.SKIPPED, "old"),
        # A test that passed and whose clean-up failed has two entries.
        (report("", '<error message="failed on teardown">trace</error>'), Outcome.FAILED, "failed on teardown"),
        (report(), Outcome.FAILED, "pytest ran no test"),
        ("", Outcome.FAILED, "pytest ended without a report"),
    ],
)
def test_the_outcome_comes_from_the_report(text: str, outcome: Outcome, detail: str) -> None:
    assert outcome_of_report(text) == (outcome, detail)
