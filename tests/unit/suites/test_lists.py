"""The lists that are kept can be read, and every reason in them is explained in docs/findings.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.expectations import PASS, SKIPPED, parse_list

ROOT = Path(__file__).resolve().parents[3]
LISTS = sorted((ROOT / "suites/expected").glob("*.txt"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_can_be_read_and_is_about_something(path: Path) -> None:
    words = parse_list(path.read_text())
    assert PASS in words.values()


def test_there_is_a_list_for_each_suite() -> None:
    assert [path.stem for path in LISTS] == ["kafka-python", "librdkafka"]


def test_findings_explain_every_reason_that_is_given() -> None:
    findings = (ROOT / "docs/findings.md").read_text()
    given = {word for path in LISTS for word in parse_list(path.read_text()).values()} - {PASS, SKIPPED}
    assert {word for word in given if f"`{word}`" not in findings} == set()


def test_findings_name_every_test_that_cannot_pass_because_of_a_bug() -> None:
    findings = (ROOT / "docs/findings.md").read_text()
    names = [name for path in LISTS for name, word in parse_list(path.read_text()).items() if word == "bug"]
    assert [name for name in names if name.rpartition("::")[2] not in findings] == []
