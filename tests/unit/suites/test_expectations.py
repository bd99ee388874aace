"""A run of a client's test suite agrees with its list, or says where it does not."""

from __future__ import annotations

import pytest

from suites.expectations import (
    REASONS,
    ListError,
    Outcome,
    Problem,
    Result,
    format_list,
    heading_of,
    judge,
    parse_list,
    summary,
    updated,
)


def result(name: str, outcome: Outcome, detail: str = "") -> Result:
    return Result(name, outcome, 1.0, detail)


def test_a_list_is_read_as_it_was_written() -> None:
    words = {"a.py::test_one[x y]": "pass", "0045_b": "groups", "0001_a": "skipped"}
    text = format_list(words, "two lines\n\nof heading")
    assert parse_list(text) == words
    assert list(parse_list(text)) == list(words)
    assert heading_of(text) == "two lines\n\nof heading"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pass", "a word and a test's name"),
        ("pas 0001_a", "'pas' is not one of: pass, skipped, groups"),
        ("pass 0001_a\n\n# again\ngroups 0001_a", "line 4: 0001_a has a line already"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(ListError, match=message.replace("[", r"\[")):
        parse_list(text)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("pass", Outcome.PASSED),
        ("skipped", Outcome.SKIPPED),
        ("groups", Outcome.FAILED),
        ("groups", Outcome.SKIPPED),
    ],
)
def test_a_test_that_does_what_its_line_says_is_no_problem(word: str, outcome: Outcome) -> None:
    assert judge({"a": word}, [result("a", outcome)], ["a"]) == []


@pytest.mark.parametrize(
    ("word", "outcome", "text"),
    [
        ("pass", Outcome.FAILED, "failed, but is expected to pass"),
        ("pass", Outcome.SKIPPED, "skipped, but is expected to pass"),
        ("groups", Outcome.PASSED, "now passes, update the list (it says groups)"),
        ("skipped", Outcome.PASSED, "now passes, update the list (it says skipped)"),
        ("skipped", Outcome.FAILED, "failed, but is expected to be skipped by its suite"),
    ],
)
def test_a_disagreement_in_either_direction_is_a_problem(word: str, outcome: Outcome, text: str) -> None:
    assert judge({"a": word}, [result("a", outcome)]) == [Problem("a", text)]


def test_a_problem_says_what_the_test_said() -> None:
    problems = judge({"a": "pass"}, [result("a", Outcome.FAILED, "no leader")])
    assert problems == [Problem("a", "failed, but is expected to pass: no leader")]


def test_tests_without_a_line_and_lines_without_a_test_are_problems() -> None:
    problems = judge({"gone": "pass"}, [result("new", Outcome.PASSED)], ["new"])
    assert [(problem.name, problem.text) for problem in problems] == [
        ("new", "passed, but has no line in the list: add one"),
        ("gone", "is no longer in the suite: remove its line"),
    ]


def test_lines_without_a_test_do_not_matter_when_only_some_tests_were_chosen() -> None:
    assert judge({"a": "pass", "b": "pass"}, [result("a", Outcome.PASSED)]) == []


def test_an_updated_list_keeps_known_reasons_and_follows_the_suite() -> None:
    expected = {"gone": "pass", "now": "groups", "still": "groups", "broke": "pass", "not-run": "sasl"}
    results = [
        result("now", Outcome.PASSED),
        result("still", Outcome.FAILED),
        result("broke", Outcome.FAILED),
        result("new", Outcome.SKIPPED),
    ]
    words = updated(expected, results, ["new", "now", "still", "broke", "not-run"])
    assert list(words.items()) == [
        ("new", "skipped"),
        ("now", "pass"),
        ("still", "groups"),
        ("broke", "bug"),
        ("not-run", "sasl"),
    ]


def test_the_summary_counts_reasons() -> None:
    expected = {"a": "pass", "b": "groups", "c": "groups", "d": "pass", "e": "tls"}
    results = [
        result("a", Outcome.PASSED),
        result("b", Outcome.FAILED),
        result("c", Outcome.SKIPPED),
        result("d", Outcome.FAILED),
        result("e", Outcome.PASSED),
    ]
    assert summary(expected, results) == "2 of 5 passed; not yet: groups 2"


def test_every_reason_is_explained() -> None:
    assert all(text for text in REASONS.values())
