"""The index of aborted transactions beside a segment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.runtime.disk import File
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.aborted_transactions import (
    AbortedTransaction,
    TransactionIndex,
    read_aborted,
    render_aborted,
)
from tailrace.testing.disk import SimDisk

ENTRY_BYTES = 34


def history(random: Random, producers: int, steps: int, *, first_open: int | None = None) -> list[AbortedTransaction]:
    """What a log would index in which several producers abort transactions; one may be open all the time."""
    running: dict[int, int] = {} if first_open is None else {-1: first_open}
    found = []
    for offset in range(1, steps):
        producer_id = random.randrange(producers)
        first = running.pop(producer_id, None)
        if first is None:
            running[producer_id] = offset
        else:
            found.append(AbortedTransaction(producer_id, first, offset, min(running.values(), default=offset + 1)))
    return found


def index_of(path: Path, transactions: list[AbortedTransaction]) -> TransactionIndex:
    index = TransactionIndex(SystemDisk(), str(path / "00000000000000000000.txnindex"))
    for each in transactions:
        index.add(each)
    return index


def search(transactions: list[AbortedTransaction], offset: int, upper: int) -> tuple[list[AbortedTransaction], bool]:
    """Kafka's search, entry by entry."""
    found = []
    for each in transactions:
        if each.last_offset >= offset and each.first_offset < upper:
            found.append(each)
        if each.last_stable_offset >= upper:
            return found, True
    return found, False


def test_a_file_has_kafkas_format_and_exists_only_once_something_is_aborted(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    index = index_of(tmp_path, [])
    assert (len(index), index.last, path.exists()) == (0, None, False)
    index.add(AbortedTransaction(7, 10, 20, 15))
    assert path.read_bytes() == bytes.fromhex(
        "0000 0000000000000007 000000000000000a 0000000000000014 000000000000000f"
    )
    assert read_aborted(SystemDisk(), [str(path), str(path) + "x"]) == [(7, 10, 20, 15)]


def test_it_is_read_again_without_an_entry_that_was_torn(tmp_path: Path) -> None:
    entries = [AbortedTransaction(1, 0, 1, 2), AbortedTransaction(2, 2, 3, 4)]
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(render_aborted(entries)[:-1])
    index = index_of(tmp_path, [])
    assert [*index] == entries[:1]
    index.add(entries[1])
    assert [*index_of(tmp_path, [])] == entries
    assert path.stat().st_size == 2 * ENTRY_BYTES


def test_a_truncation_keeps_what_ended_below(tmp_path: Path) -> None:
    entries = history(Random(1), 4, 2000)
    for end_offset in (0, entries[300].last_offset, entries[300].last_offset + 1, 5000):
        index = index_of(tmp_path, entries)
        list(map(index.collect, [0], [1], [[]]))
        index.truncate(end_offset)
        kept = [each for each in entries if each.last_offset < end_offset]
        assert [*index] == kept == [*index_of(tmp_path, [])]
        assert index.last == (kept[-1] if kept else None)
        index.clear()
        assert len(index_of(tmp_path, [])) == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 12), st.booleans(), st.data())
def test_it_finds_what_kafkas_search_finds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, producers: int, one_stays_open: bool, data: st.DataObject
) -> None:
    entries = history(Random(seed), producers, 1500, first_open=3 if one_stays_open else None)
    index = index_of(tmp_path_factory.mktemp("index"), entries)
    for _ in range(20):
        offset = data.draw(st.integers(0, 1600))
        upper = data.draw(st.integers(offset + 1, 1700))
        found: list[AbortedTransaction] = []
        is_complete = index.collect(offset, upper, found)
        expected, was_complete = search(entries, offset, upper)
        assert (found, is_complete) == (expected, was_complete)


def test_a_search_reads_little_of_a_large_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All of them ended while a transaction was open that began before.
    entries = [AbortedTransaction(1, 2 * number, 2 * number + 1, 0) for number in range(1, 100_000)]
    (tmp_path / "00000000000000000000.txnindex").write_bytes(render_aborted(entries))
    index = index_of(tmp_path, [])
    found: list[AbortedTransaction] = []
    index.collect(1000, 1100, found)  # knows the blocks from here on
    read = []
    file = index.file
    assert file is not None
    count_reads(monkeypatch, file, read)
    found.clear()
    assert not index.collect(1000, 1100, found)
    assert found == [each for each in entries if each.last_offset >= 1000 and each.first_offset < 1100]
    assert sum(read) < 60 * ENTRY_BYTES + 2 * 256 * ENTRY_BYTES


def count_reads(monkeypatch: pytest.MonkeyPatch, file: File, sizes: list[int]) -> None:
    right = type(file).read

    def read(self: File, position: int, size: int) -> bytes:
        sizes.append(size)
        return right(self, position, size)

    monkeypatch.setattr(type(file), "read", read)


def test_a_full_disk_delays_the_write_and_nothing_else() -> None:
    disk = SimDisk(Random(1))
    disk.make_directory("/log")
    index = TransactionIndex(disk, "/log/00000000000000000000.txnindex")
    entries = history(Random(2), 2, 40)
    index.add(entries[0])
    disk.capacity_bytes = disk.used_bytes
    for each in entries[1:]:
        index.add(each)
    found: list[AbortedTransaction] = []
    index.collect(0, 1000, found)
    assert found == [*index] == entries
    assert not index.is_written
    assert not index.flush()
    disk.capacity_bytes = None
    assert index.flush()
    assert read_aborted(disk, ["/log/00000000000000000000.txnindex"]) == sorted(entries, key=lambda each: each[1])
