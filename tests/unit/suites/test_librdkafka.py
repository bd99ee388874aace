"""Which of librdkafka's tests are run, and how its runner's summary is read."""

from __future__ import annotations

import pytest

from suites.expectations import Outcome, Result
from suites.librdkafka import results_of_summary, units_of_source
from suites.processes import Ended, Unit

SOURCE = """
_TEST_DECL(0001_multiobj);
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests, TEST_F_LOCAL, _THRES(.ucpu = 100.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0045_subscribe_update, 0, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0045_subscribe_update_topic_remove,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(0045_subscribe_update_mock, TEST_F_LOCAL),
    _TEST(0045_resubscribe_with_regex, 0),
    _TEST(0103_transactions, TEST_F_IDEMPOTENT_PRODUCER, .scenario = "default,ak23"),
    _TEST(0139_offset_validation_mock, 0),
    /* Manual tests */
    _TEST(8000_idle, TEST_F_MANUAL),
    {NULL}};
_TEST(9999_elsewhere, 0)
"""

SUMMARY = (
    "TEST 20250101000000 (bare, scenario default) SUMMARY\n"
    "#====#\n"
    "|\x1b[32m <MAIN>                                   |     PASSED |   2.201s \x1b[0m|\n"
    "|\x1b[32m 0045_subscribe_update                    |     PASSED |   1.500s \x1b[0m|\n"
    "|\x1b[31m 0045_resubscribe_with_regex              |     FAILED |  30.100s \x1b[0m|\x1b[31m no assignment\x1b[0m\n"
    "|\x1b[36m 0045_subscribe_update_topic_remove       |    SKIPPED |   0.000s \x1b[0m|\x1b[36m \x1b[0m\n"
    "#====#\n"
)


def test_tests_that_meet_no_broker_are_left_out_and_numbers_run_together() -> None:
    assert units_of_source(SOURCE) == [
        Unit("0001 default", ("0001_multiobj",)),
        Unit("0045 default", ("0045_subscribe_update", "0045_resubscribe_with_regex")),
        Unit("0045 noautocreate", ("0045_subscribe_update_topic_remove",)),
        Unit("0103 default", ("0103_transactions",)),
    ]


def test_a_source_without_its_table_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no table of tests"):
        units_of_source("int main(void) { return 0; }")


def test_outcomes_come_from_the_summary() -> None:
    unit = Unit("0045 default", ("0045_subscribe_update", "0045_resubscribe_with_regex"))
    assert results_of_summary(unit, Ended(1, 32.0, SUMMARY)) == [
        Result("0045_subscribe_update", Outcome.PASSED, 1.5),
        Result("0045_resubscribe_with_regex", Outcome.FAILED, 30.1, "no assignment"),
    ]


def test_a_skipped_test_is_neither_passed_nor_failed() -> None:
    unit = Unit("0045 noautocreate", ("0045_subscribe_update_topic_remove",))
    assert results_of_summary(unit, Ended(0, 1.0, SUMMARY))[0].outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        (None, "did not finish within the time limit"),
        (-6, "was ended by signal 6"),
        (1, "ended with exit code 1"),
        (0, "ended with exit code 0"),
    ],
)
def test_a_test_that_no_summary_names_has_failed(code: int | None, detail: str) -> None:
    unit = Unit("0001 default", ("0001_multiobj",))
    assert results_of_summary(unit, Ended(code, 3.0, "Running…")) == [
        Result("0001_multiobj", Outcome.FAILED, 3.0, detail)
    ]


def test_a_runner_that_fails_after_its_summary_has_failed() -> None:
    unit = Unit("0045 default", ("0045_subscribe_update",))
    results = results_of_summary(unit, Ended(1, 9.0, SUMMARY))
    assert [(result.outcome, result.detail) for result in results] == [
        (Outcome.FAILED, "passed, but then the runner ended with exit code 1")
    ]
