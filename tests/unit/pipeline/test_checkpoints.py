"""Where checkpoints are, and which job each belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.pipeline.jobs.checkpoints import default_root, is_of, location, topics_in


def test_checkpoints_are_kept_for_each_cluster_in_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert location(default_root("c1"), "totals") == "/state/tailrace/pipeline/c1/totals"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_root("c1") == "/home/me/.local/state/tailrace/pipeline/c1"


def test_a_checkpoint_may_be_on_another_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert location("hdfs://host/jobs/", "totals") == "hdfs://host/jobs/totals"
    assert location("jobs", "totals") == f"{tmp_path}/jobs/totals"


def test_the_topics_of_each_source_are_read_from_an_offset_file() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":5,"1":3}}\n-\n{"bills":{"0":2}}'
    assert topics_in(text) == [{"orders"}, set(), {"bills"}]
    assert topics_in("v2\n{}\n") is None
    assert topics_in("") is None


def test_a_checkpoint_is_of_a_job_with_the_same_topics_in_the_same_order() -> None:
    assert is_of([{"orders"}, {"bills"}], ["orders", "bills"])
    assert is_of([{"orders"}, set()], ["orders", "bills"])
    assert not is_of([{"bills"}, {"orders"}], ["orders", "bills"])
    assert not is_of([{"orders"}], ["orders", "bills"])
    assert not is_of([{"orders", "old"}], ["orders"])
