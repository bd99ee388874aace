"""Reading a query's offsets, and what happens to commits while no broker answers."""

from __future__ import annotations

import pytest

from tailrace.pipeline.source.progress import GroupProgress, lowest, offsets_of, processed_by
from tests.support.brokers.broker_process import free_port


def test_the_offsets_of_a_source_are_read_from_its_json() -> None:
    assert offsets_of({"orders": {"0": 42, "11": 0}, "bills": {"0": 7}}) == {
        ("orders", 0): 42,
        ("orders", 11): 0,
        ("bills", 0): 7,
    }


@pytest.mark.parametrize(
    "other", [None, 5, "x", {"logOffset": 3}, {"a": {"b": 1}}, {"a": {"0": "1"}}, {"a": {"0": True}}]
)
def test_offsets_of_other_sources_are_not_ours(other: object) -> None:
    assert offsets_of(other) == {}


def test_of_a_topic_that_is_read_twice_only_what_both_have_processed_counts() -> None:
    assert lowest([{("orders", 0): 9, ("bills", 0): 1}, {("orders", 0): 4}]) == {("orders", 0): 4, ("bills", 0): 1}


def test_a_batch_has_processed_up_to_the_end_offsets_of_its_sources() -> None:
    progress = {
        "sources": [
            {"startOffset": None, "endOffset": {"orders": {"0": 5}}, "latestOffset": {"orders": {"0": 50}}},
            {"startOffset": {"bills": {"0": 1}}, "endOffset": {"bills": {"0": 2}}},
        ]
    }
    assert processed_by(progress) == {("orders", 0): 5, ("bills", 0): 2}


def test_a_commit_that_fails_is_one_warning_and_nothing_else() -> None:
    warnings: list[str] = []
    progress = GroupProgress(f"127.0.0.1:{free_port()}", "some-group", warnings.append)
    progress.processed({("orders", 0): 5})
    progress.close()
    (warning,) = warnings
    assert warning.startswith("cannot show progress in group 'some-group': cannot reach a broker")
