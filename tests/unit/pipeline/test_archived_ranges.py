"""However archive and log share a partition, every offset is read from exactly one of them, and by one task."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive.layout import TopicArchive
from tailrace.archive.manifest import ArchivedFile, PartitionFiles
from tailrace.archive.quarantine import SideFile
from tailrace.archive.scan import EVER
from tailrace.model import TopicPartition
from tailrace.pipeline.source.archived_ranges import TASK_BYTES, ArchivedPart, ArchivedRange, Piece, plan_pieces
from tailrace.pipeline.source.ranges import OffsetRange

ARCHIVE = TopicArchive("/archive", "a", UUID(int=7), "head")
NAME = TopicPartition("a", 0)
WANTED = st.none() | st.integers(min_value=1, max_value=40)


def file(first: int, end: int, *, size: int = 1000, times: tuple[int, int] | None = None) -> ArchivedFile:
    """A file whose records are of the times of their offsets, unless told otherwise."""
    least, most = times or (first, end - 1)
    return ArchivedFile(f"{first}", 0, first, end, end - first, size, "", 10, "", least, most)


def part_of(files: list[ArchivedFile], start: int | None = None, end: int | None = None) -> ArchivedPart:
    first, last = files[0].first_offset, files[-1].next_offset
    return ArchivedPart(
        ARCHIVE, first if start is None else start, last if end is None else end, PartitionFiles.of(first, last, files)
    )


def covered(pieces: list[Piece]) -> list[tuple[int, int, bool]]:
    return [
        (piece.offsets.start, piece.offsets.end, True)
        if isinstance(piece, ArchivedRange)
        else (piece.start, piece.end, False)
        for piece in pieces
    ]


@given(
    borders=st.sets(st.integers(0, 300), min_size=2, max_size=12).map(sorted),
    start=st.integers(0, 300),
    size=st.integers(1, 300),
    deleted=st.integers(0, 300),
    min_partitions=WANTED,
    max_records=WANTED,
)
def test_every_offset_is_in_one_piece_and_from_files_where_there_are_files(
    borders: list[int], start: int, size: int, deleted: int, min_partitions: int | None, max_records: int | None
) -> None:
    files = [file(first, end) for first, end in pairwise(borders)]
    begin, end = max(borders[0], deleted, start), min(borders[-1], start + size)
    parts = {NAME: part_of(files, begin, end)} if begin < end else {}
    pieces = plan_pieces([OffsetRange("a", 0, start, start + size)], parts, EVER, min_partitions, max_records)
    sources = {offset: from_files for first, last, from_files in covered(pieces) for offset in range(first, last)}
    assert list(sources) == list(range(start, start + size))
    assert sum(last - first for first, last, _ in covered(pieces)) == size
    assert all(from_files == (begin <= offset < end) for offset, from_files in sources.items())
    for piece in pieces:
        if max_records is not None:
            assert (piece.offsets.size if isinstance(piece, ArchivedRange) else piece.size) <= max_records
        if isinstance(piece, ArchivedRange):
            held = {n for one in piece.files for n in range(one.first_offset, one.next_offset)}
            assert held.issuperset(range(piece.offsets.start, piece.offsets.end))


def test_files_of_other_times_are_left_out() -> None:
    part = part_of([file(first, first + 100) for first in range(0, 1000, 100)])
    archived, log = plan_pieces([OffsetRange("a", 0, 0, 1200)], {NAME: part}, (250, 310))
    assert isinstance(archived, ArchivedRange)
    assert [one.name for one in archived.files] == ["200", "300"]
    assert log == OffsetRange("a", 0, 1000, 1200)
    # A file between two that are read may be one that is not.
    odd = part_of([file(0, 100, times=(5, 6)), file(100, 200, times=(1, 2)), file(200, 300, times=(5, 6))])
    (one,) = plan_pieces([OffsetRange("a", 0, 0, 300)], {NAME: odd}, (5, 5))
    assert isinstance(one, ArchivedRange)
    assert [each.name for each in one.files] == ["0", "200"]
    assert plan_pieces([OffsetRange("a", 0, 0, 300)], {NAME: odd}, (9, 9)) == []


def test_large_files_are_tasks_of_their_own_and_small_ones_share_one() -> None:
    sizes = [TASK_BYTES, TASK_BYTES, 10, 10, 10]
    files = [file(100 * number, 100 * number + 100, size=size) for number, size in enumerate(sizes)]
    one = OffsetRange("a", 0, 0, 500)
    pieces = plan_pieces([one], {NAME: part_of(files)}, EVER)
    assert covered(pieces) == [(0, 100, True), (100, 200, True), (200, 500, True)]
    huge = part_of([file(0, 400, size=4 * TASK_BYTES)])
    assert covered(plan_pieces([one], {NAME: huge}, EVER)) == [
        *((start, start + 100, True) for start in (0, 100, 200, 300)),
        (400, 500, False),
    ]
    # A file is split where more tasks are wanted than there are files.
    assert len(plan_pieces([replace(one, end=100)], {NAME: part_of(files[:1])}, EVER, min_partitions=4)) == 4
    # Half of a file is half of its bytes.
    half = plan_pieces([OffsetRange("a", 0, 50, 150)], {NAME: part_of(files)}, EVER)
    assert covered(half) == [(50, 150, True)]


def test_pieces_know_the_quarantined_batches_of_their_offsets_and_times() -> None:
    def aside(first: int, end: int, times: tuple[int, int]) -> SideFile:
        return SideFile(f"{first}", 0, first, end, 1, end - first, 100, "", *times, "why")

    side_files = [aside(10, 15, (10, 14)), aside(120, 130, (5000, 5000))]
    files = PartitionFiles.of(0, 200, [file(0, 100), file(100, 200)], side_files)
    part = ArchivedPart(ARCHIVE, 0, 200, files)

    def found(start: int, end: int, times: tuple[int, int]) -> list[tuple[list[str], list[str]]]:
        pieces = plan_pieces([OffsetRange("a", 0, start, end)], {NAME: part}, times)
        assert all(isinstance(piece, ArchivedRange) for piece in pieces)
        return [
            ([each.name for each in piece.files], [each.name for each in piece.side_files])
            for piece in pieces
            if isinstance(piece, ArchivedRange)
        ]

    assert found(0, 200, EVER) == [(["0", "100"], ["10", "120"])]
    assert found(15, 120, EVER) == [(["0", "100"], [])]
    assert found(0, 200, (20, 90)) == [(["0"], [])]
    # A file of which no record is wanted, but a batch that claims such a time.
    assert found(0, 200, (5000, 6000)) == [(["100"], ["120"])]
