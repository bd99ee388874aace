"""A sparse index finds the last entry not above a number, whether its entries are in the file or in memory."""

from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path
from random import Random

import pytest

from tailrace.errors import StorageError
from tailrace.runtime.disk import DiskFullError
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.sparse_index import OffsetIndex, TimeIndex
from tailrace.testing.disk import SimDisk

#: More than are held back in memory, so that both places are used.
MANY = 300


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "00000000000000000000.index")


def filled(path: str, entries: int) -> OffsetIndex:
    index = OffsetIndex(SystemDisk(), path)
    for number in range(1, entries + 1):
        index.append(number * 10, number * 4096)
    return index


@pytest.mark.parametrize("entries", [1, 2, 127, 128, 129, MANY])
def test_the_floor_of_a_number_is_the_last_entry_not_above_it(path: str, entries: int) -> None:
    index = filled(path, entries)
    assert index.floor(9) is None
    for number in range(1, entries + 1):
        for value in (number * 10, number * 10 + 9):
            assert index.floor(value) == (number * 10, number * 4096)
    assert index.floor(10**9) == index.last() == (entries * 10, entries * 4096)


@pytest.mark.parametrize("entries", [1, 128, MANY])
def test_the_floor_may_be_asked_by_position_too(path: str, entries: int) -> None:
    index = filled(path, entries)
    assert index.floor(4095, by=1) is None
    for number in range(1, entries + 1):
        assert index.floor(number * 4096 + 4095, by=1) == (number * 10, number * 4096)


def test_an_empty_index_has_no_floor_and_no_last_entry(path: str) -> None:
    index = OffsetIndex(SystemDisk(), path)
    assert (len(index), index.last(), index.floor(5)) == (0, None, None)


@pytest.mark.parametrize("kept", [0, 1, 100, 128, 200, 256, 257, MANY])
def test_truncation_keeps_exactly_the_first_entries(path: str, kept: int) -> None:
    index = filled(path, MANY)
    index.truncate(kept)
    assert list(index) == [(number * 10, number * 4096) for number in range(1, kept + 1)]
    index.append(10**6, 10**8)
    assert index.last() == (10**6, 10**8)
    assert len(index) == kept + 1


def test_entries_are_in_kafkas_format_after_a_flush_and_read_back_the_same(path: str) -> None:
    filled(path, 3).flush()
    assert Path(path).read_bytes() == b"".join(struct.pack(">iI", n * 10, n * 4096) for n in (1, 2, 3))
    assert list(OffsetIndex(SystemDisk(), path)) == [(10, 4096), (20, 8192), (30, 12288)]


def test_a_time_index_entry_is_a_long_and_an_int(path: str) -> None:
    index = TimeIndex(SystemDisk(), path)
    index.append(1_700_000_000_000, 5)
    index.flush()
    assert Path(path).read_bytes() == struct.pack(">qi", 1_700_000_000_000, 5)


def test_a_torn_last_entry_is_cut_off_when_the_file_is_opened(path: str) -> None:
    filled(path, 3).flush()
    for cut in range(1, 8):
        content = Path(path).read_bytes()
        torn = Path(f"{path}.{cut}")
        torn.write_bytes(content[:-cut])
        assert list(OffsetIndex(SystemDisk(), str(torn))) == [(10, 4096), (20, 8192)]
        assert torn.stat().st_size == 16


def test_on_a_full_disk_entries_stay_in_memory_and_are_written_when_there_is_room() -> None:
    disk = SimDisk(Random(1), capacity_bytes=0)
    disk.make_directory("/d")
    index = OffsetIndex(disk, "/d/index")
    for number in range(1, MANY + 1):
        index.append(number, number * 100)
    assert (disk.read_file("/d/index"), len(index)) == (b"", MANY)
    assert index.floor(200) == (200, 20_000)
    disk.capacity_bytes = None
    index.flush()
    assert list(OffsetIndex(disk, "/d/index")) == list(index)


def test_another_error_of_the_disk_is_not_kept_quiet() -> None:
    disk = SimDisk(Random(1))
    disk.make_directory("/d")
    index = OffsetIndex(disk, "/d/index")
    index.append(1, 1)
    disk.fail(lambda path: path.endswith("index"), "append")
    with pytest.raises(StorageError) as caught:
        index.flush()
    assert not isinstance(caught.value, DiskFullError)


def test_an_index_file_that_became_shorter_is_an_error_and_no_wrong_answer(path: str) -> None:
    index = filled(path, 128)
    Path(path).write_bytes(b"")
    with pytest.raises(StorageError, match="shorter than it was"):
        index.floor(10)


@pytest.mark.parametrize("by", [0, 1])
def test_lookups_in_any_order_over_a_large_index_agree_with_a_plain_search(path: str, by: int) -> None:
    random = Random(7)
    pairs = list(
        zip(sorted(random.sample(range(100_000), 3000)), sorted(random.sample(range(900_000), 3000)), strict=True)
    )
    index = OffsetIndex(SystemDisk(), path)
    for first, second in pairs:
        index.append(first, second)
    index.flush()
    numbers = [pair[by] for pair in pairs]
    forwards = list(range(0, numbers[-1] + 10, 37))
    for value in [*forwards, *random.sample(range(numbers[-1]), 500), *reversed(forwards[::50])]:
        place = bisect_right(numbers, value)
        assert index.floor(value, by) == (pairs[place - 1] if place else None)


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("flushed", [0, 3, 10])
def test_how_many_entries_are_below_a_value(tmp_path: Path, by: int, flushed: int) -> None:
    index = OffsetIndex(SystemDisk(), str(tmp_path / "x.index"))
    entries = [(10 * number, 100 * number) for number in range(1, 11)]
    for number, entry in enumerate(entries):
        if number == flushed:
            index.flush()
        index.append(*entry)
    for value in range(0, 1200, 5):
        assert index.count_below(value, by) == sum(1 for entry in entries if entry[by] < value)
