"""The checkpoint of a replay: the newest complete file counts, and another replay cannot use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.pipeline.jobs.checkpoints import CheckpointError
from tailrace.pipeline.replay.checkpoint import Progress, ReplayCheckpoint

IDENTITY = {"source": "orders", "--from-offset": {"0": 3}, "--where": None}
RANGES = {0: (3, 10), 2: (0, 5)}


def checkpoint(path: Path, **changes: object) -> ReplayCheckpoint:
    return ReplayCheckpoint(str(path), {**IDENTITY, **changes})


def after(batches: int, first: int, second: int) -> Progress:
    return Progress(RANGES, {0: first, 2: second}, batches, batches * 2)


def test_it_goes_on_from_what_was_kept_last_and_forgets_all_when_done(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path / "a" / "b")
    assert kept.load() is None
    for progress in (after(1, 4, 0), after(2, 6, 1), after(3, 8, 5)):
        kept.save(progress)
        assert checkpoint(tmp_path / "a" / "b").load() == progress
        assert progress.left == 10 - progress.next[0] + 5 - progress.next[2]
    assert len(list(tmp_path.rglob("*.json"))) == 2
    kept.remove()
    assert checkpoint(tmp_path / "a" / "b").load() is None


def test_a_torn_file_is_passed_over(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path)
    kept.save(after(1, 4, 0))
    kept.save(after(2, 5, 0))
    newest = max(tmp_path.rglob("*.json"))
    for content in (b"", newest.read_bytes()[:-20], b"[]", b"\xff"):
        newest.write_bytes(content)
        assert kept.load() == after(1, 4, 0)


def test_one_of_another_replay_is_refused_with_what_is_different(tmp_path: Path) -> None:
    checkpoint(tmp_path).save(after(1, 4, 0))
    with pytest.raises(CheckpointError, match=r"with another --where: it has none, this one id > 1\. Continue"):
        checkpoint(tmp_path, **{"--where": "id > 1"}).load()
    with pytest.raises(CheckpointError, match=r'another --from-offset: it has \{"0": 3\}, this one none'):
        checkpoint(tmp_path, **{"--from-offset": {}}).load()


def test_two_replays_at_once_with_one_checkpoint_are_noticed(tmp_path: Path) -> None:
    one, other = checkpoint(tmp_path), checkpoint(tmp_path)
    one.save(after(1, 4, 0))
    with pytest.raises(CheckpointError, match="another replay is running with the checkpoint"):
        other.save(after(1, 4, 0))
