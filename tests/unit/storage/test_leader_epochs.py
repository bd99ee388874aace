"""The history of leader epochs: where each began and ended, kept to what the log still has."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.leader_epochs import LeaderEpochs
from tailrace.testing.disk import SimDisk


def history(directory: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(SystemDisk(), str(directory))
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_an_epoch_lasts_until_the_next_one_begins(tmp_path: Path) -> None:
    epochs = history(tmp_path, (1, 0), (3, 50), (4, 90))
    assert epochs.latest == 4
    assert [epochs.epoch_at(offset) for offset in (0, 49, 50, 89, 90, 1000)] == [1, 1, 3, 3, 4, 4]
    assert epochs.end_offset_for(1, 120) == (1, 50)
    assert epochs.end_offset_for(3, 120) == (3, 90)
    assert epochs.end_offset_for(4, 120) == (4, 120)


def test_an_epoch_nobody_saw_is_answered_with_the_one_before_it(tmp_path: Path) -> None:
    epochs = history(tmp_path, (1, 0), (3, 50), (5, 90))
    assert epochs.end_offset_for(2, 120) == (1, 50)
    assert epochs.end_offset_for(4, 120) == (3, 90)
    assert epochs.end_offset_for(6, 120) == (-1, -1)
    assert epochs.end_offset_for(-1, 120) == (-1, -1)


def test_an_epoch_from_before_the_log_ends_where_the_log_begins(tmp_path: Path) -> None:
    assert history(tmp_path, (3, 50), (4, 80)).end_offset_for(1, 120) == (1, 50)


def test_nothing_is_known_of_an_empty_log(tmp_path: Path) -> None:
    epochs = history(tmp_path)
    assert (epochs.latest, epochs.epoch_at(0), epochs.end_offset_for(0, 0)) == (-1, -1, (-1, -1))


def test_epochs_never_go_back(tmp_path: Path) -> None:
    epochs = history(tmp_path, (3, 50), (2, 60), (3, 70))
    assert epochs.entries == ((3, 50),)


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next(tmp_path: Path) -> None:
    assert history(tmp_path, (1, 0), (2, 50), (3, 50)).entries == ((1, 0), (3, 50))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 100, ((1, 0), (3, 50), (4, 90))),
        (0, 90, ((1, 0), (3, 50))),
        (0, 50, ((1, 0),)),
        (49, 100, ((1, 49), (3, 50), (4, 90))),
        (50, 100, ((3, 50), (4, 90))),
        (60, 100, ((3, 60), (4, 90))),
        (95, 100, ((4, 95),)),
        (100, 100, ((4, 100),)),
    ],
)
def test_epochs_without_offsets_in_the_log_are_forgotten(
    tmp_path: Path, start: int, end: int, expected: tuple[tuple[int, int], ...]
) -> None:
    epochs = history(tmp_path, (1, 0), (3, 50), (4, 90))
    epochs.truncate(start, end)
    assert epochs.entries == expected


def test_the_history_is_in_kafkas_format_and_read_back_the_same(tmp_path: Path) -> None:
    epochs = history(tmp_path, (1, 0), (3, 50))
    epochs.sync_work()()
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n3 50\n"
    assert history(tmp_path).entries == ((1, 0), (3, 50))


@pytest.mark.parametrize("content", [b"", b"0", b"0\n1\n", b"9\n0\n", b"0\n1\nx y\n", bytes(30)])
def test_a_damaged_history_is_empty_to_be_rebuilt_from_the_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_bytes(content)
    assert history(tmp_path).entries == ()


def test_what_a_full_disk_refused_is_written_by_the_next_sync() -> None:
    disk = SimDisk(Random(1), capacity_bytes=0)
    disk.make_directory("/d")
    epochs = LeaderEpochs(disk, "/d")
    epochs.assign(1, 0)
    assert (epochs.latest, disk.read_file("/d/leader-epoch-checkpoint")) == (1, None)
    disk.capacity_bytes = None
    epochs.sync_work()()
    assert disk.read_file("/d/leader-epoch-checkpoint") == b"0\n1\n1 0\n"


def test_a_sync_that_did_not_get_to_its_end_is_owed_again(tmp_path: Path) -> None:
    epochs = history(tmp_path, (1, 0))
    (tmp_path / "leader-epoch-checkpoint").unlink()
    epochs.sync_work()
    epochs.sync_failed()
    epochs.sync_work()()
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (100, ((1, 0), (3, 50), (4, 90))),
        (90, ((1, 0), (3, 50))),
        (51, ((1, 0), (3, 50))),
        (50, ((1, 0),)),
        (0, ()),
    ],
)
def test_a_cut_forgets_every_epoch_that_began_there_or_later(
    tmp_path: Path, end: int, expected: tuple[tuple[int, int], ...]
) -> None:
    epochs = history(tmp_path, (1, 0), (3, 50), (4, 90))
    epochs.cut(end)
    assert (epochs.entries, epochs.latest) == (expected, expected[-1][0] if expected else -1)
    assert history(tmp_path).entries == expected
    epochs.assign(9, end)
    assert epochs.entries == (*expected, (9, end))
