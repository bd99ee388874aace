"""One segment: batches are found by offset, position and time, and a read ends where a batch ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tailrace.errors import StorageError
from tailrace.records.batch import BatchHeader, assign_offset, read_header
from tailrace.runtime.disk import Disk, DiskFullError
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.segment import CorruptSegmentError, Segment
from tailrace.testing.disk import SimDisk
from tests.unit.storage.logs import BATCH_BYTES, batch

BASE = 1000
#: None of them, every batch, every third or so.
INTERVALS = [1 << 30, 0, 3 * BATCH_BYTES - 1]


def with_time(segment: Segment, timestamp: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    batches = segment.batches_from(timestamp, offset)
    return ((position, header) for position, header in batches if header.max_timestamp >= timestamp)


def add(segment: Segment, count: int = 1, *, timestamp: int = 0, interval: int = 0) -> None:
    data = batch(count, timestamp=timestamp)
    offset = segment.end_offset
    assign_offset(data, offset, 0)
    segment.append(data, offset, offset + count - 1, timestamp, interval)


def filled(directory: Path, counts: list[int], interval: int = 0, disk: Disk | None = None) -> Segment:
    segment = Segment(disk or SystemDisk(), str(directory), BASE, BASE, create=True)
    for number, count in enumerate(counts):
        add(segment, count, timestamp=number * 10, interval=interval)
    return segment


def reopened(directory: Path, end_offset: int) -> Segment:
    return Segment(SystemDisk(), str(directory), BASE, end_offset)


def boundaries(segment: Segment) -> list[int]:
    return [position for position, _ in segment.headers()] + [segment.size]


@pytest.mark.parametrize("interval", INTERVALS)
def test_every_offset_is_found_in_the_batch_that_holds_it(tmp_path: Path, interval: int) -> None:
    counts = [1 + number % 4 for number in range(40)]
    filled(tmp_path, counts, interval).seal()
    segment = reopened(tmp_path, BASE + sum(counts))
    for offset in range(BASE, segment.end_offset):
        position = segment.position_of(offset)
        assert position is not None
        header = read_header(segment.log.read(position, 61))
        assert header.base_offset <= offset <= header.last_offset
    assert segment.position_of(segment.end_offset) is None


def test_an_offset_in_a_gap_is_answered_with_the_batch_after_it(tmp_path: Path) -> None:
    segment = filled(tmp_path, [2])
    segment.end_offset += 10
    add(segment)
    assert segment.position_of(BASE + 5) == len(batch(2))


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_read_ends_on_a_batch_boundary_within_its_limit_but_has_at_least_one_batch(
    tmp_path: Path, interval: int
) -> None:
    segment = filled(tmp_path, [1, 3, 1, 1, 5, 1, 2], interval)
    ends = boundaries(segment)
    for at, position in enumerate(ends[:-1]):
        for limit_at in range(at + 1, len(ends)):
            limit = ends[limit_at]
            for max_bytes in (-1, 0, 1, BATCH_BYTES, BATCH_BYTES + 1, 3 * BATCH_BYTES, 1 << 20):
                end = segment.end_of_read(position, max_bytes, limit)
                assert end in ends
                assert position < end <= limit
                assert end - position <= max_bytes or end == ends[at + 1]


def test_a_read_takes_all_that_fits_where_no_index_entry_is_in_the_way(tmp_path: Path) -> None:
    segment = filled(tmp_path, [1] * 10, interval=1 << 30)
    assert segment.end_of_read(0, 3 * BATCH_BYTES + 5, segment.size) == 3 * BATCH_BYTES


@pytest.mark.parametrize("interval", INTERVALS)
def test_batches_are_found_by_time(tmp_path: Path, interval: int) -> None:
    filled(tmp_path, [1] * 20, interval).seal()
    for segment in (reopened(tmp_path, BASE + 20), filled(tmp_path / "..", [1] * 20, interval)):
        assert segment.max_timestamp == 190
        assert segment.offset_of_max_timestamp == BASE + 19
        for timestamp in range(191):
            _, header = next(with_time(segment, timestamp, BASE))
            assert header.base_offset == BASE + -(-timestamp // 10)
        assert next(with_time(segment, 191, BASE), None) is None


def test_timestamps_that_go_back_do_not_hide_earlier_larger_ones(tmp_path: Path) -> None:
    segment = Segment(SystemDisk(), str(tmp_path), BASE, BASE, create=True)
    for timestamp in (50, 10, 90, 20, 30):
        add(segment, timestamp=timestamp)
    segment.seal()
    again = reopened(tmp_path, BASE + 5)
    assert (again.max_timestamp, again.offset_of_max_timestamp) == (90, BASE + 2)
    found = {timestamp: next(with_time(again, timestamp, BASE))[1].base_offset for timestamp in (5, 50, 51, 90)}
    assert found == {5: BASE, 50: BASE, 51: BASE + 2, 90: BASE + 2}


def test_batches_below_an_offset_are_not_looked_at_for_a_time(tmp_path: Path) -> None:
    segment = filled(tmp_path, [1] * 10)
    assert [header.base_offset for _, header in segment.batches_from(0, BASE + 8)] == [BASE + 8, BASE + 9]


def test_a_cut_segment_goes_on_as_if_the_rest_had_never_been(tmp_path: Path) -> None:
    segment = filled(tmp_path, [1] * 10)
    segment.truncate(6 * BATCH_BYTES, BASE + 6)
    assert (segment.size, segment.end_offset, segment.max_timestamp) == (6 * BATCH_BYTES, BASE + 6, 50)
    assert segment.position_of(BASE + 6) is None
    add(segment, timestamp=55)
    assert segment.position_of(BASE + 6) == 6 * BATCH_BYTES
    assert (segment.max_timestamp, segment.offset_of_max_timestamp) == (55, BASE + 6)


def test_bytes_that_are_no_batch_are_corrupt_and_no_guess(tmp_path: Path) -> None:
    filled(tmp_path, [1] * 3).seal()
    path = tmp_path / f"{BASE:020d}.log"
    whole = path.read_bytes()
    for at, value in ((8, 0x80), (8, 0x7F), (16, 1), (0, 0x80)):
        damaged = bytearray(whole)
        damaged[BATCH_BYTES + at] = value
        path.write_bytes(damaged)
        with pytest.raises(CorruptSegmentError) as caught:
            list(reopened(tmp_path, BASE + 3).headers())
        assert caught.value.position == BATCH_BYTES
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptSegmentError):
        list(reopened(tmp_path, BASE + 3).headers())


def test_nothing_is_read_from_where_a_crc_was_found_wrong(tmp_path: Path) -> None:
    filled(tmp_path, [1] * 4).seal()
    path = tmp_path / f"{BASE:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[3 * BATCH_BYTES - 1] ^= 1
    path.write_bytes(damaged)
    segment = reopened(tmp_path, BASE + 4)
    segment.verify(0, segment.log.prefetch(0, segment.size))
    assert segment.corrupt_position == 2 * BATCH_BYTES
    assert segment.readable_end(0, segment.size) == 2 * BATCH_BYTES
    for position in (2 * BATCH_BYTES, 3 * BATCH_BYTES):
        with pytest.raises(CorruptSegmentError):
            segment.readable_end(position, segment.size)


@pytest.mark.parametrize("error", [DiskFullError, StorageError])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_batch_is_not_written_when_its_index_cannot_be_made(error: type[StorageError], suffix: str) -> None:
    disk = SimDisk(Random(1))
    disk.make_directory("/d")
    segment = Segment(disk, "/d", BASE, BASE, create=True)
    add(segment)
    disk.fail(lambda path: path.endswith(suffix), "open", error)
    with pytest.raises(error):
        add(segment)
    assert (segment.size, segment.end_offset) == (BATCH_BYTES, BASE + 1)
    add(segment)
    assert [header.base_offset for _, header in segment.headers()] == [BASE, BASE + 1]


def test_files_taken_out_of_the_log_are_removed_by_their_new_names_only(tmp_path: Path) -> None:
    segment = filled(tmp_path, [1] * 3)
    segment.seal()
    segment.rename_for_deletion()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".deleted"] * 3
    filled(tmp_path, [1])
    segment.remove_files()
    assert [path.name for path in tmp_path.iterdir()] == [f"{BASE:020d}.log"]


def test_an_index_entry_names_the_last_offset_of_its_batch_as_kafkas_tools_expect(tmp_path: Path) -> None:
    segment = filled(tmp_path, [3, 4, 5, 1])
    assert len(segment.offset_index) == 3
    for relative, position in segment.offset_index:
        assert read_header(segment.log.read(position, 61)).last_offset == BASE + relative
