"""A round takes adjacent pieces of about a file's size, within the limit of a round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive.manifest import ArchivedFile
from tailrace.pipeline.archiving.plan import FILE_BYTES, Backlog, Piece, bytes_per_offset, plan_round, without_holes

MB = 1 << 20


def backlog(partition: int, start: int, size: int, per_offset: float | None, deleted: int = 0) -> Backlog:
    return Backlog("orders", partition, start, start + deleted, start + deleted + size, per_offset)


def file_of(partition: int, first: int, next_offset: int, size: int = 1000) -> ArchivedFile:
    name = f"partition={partition}/{first:020d}-{next_offset - 1:020d}-0.parquet"
    return ArchivedFile(name, partition, first, next_offset, 1, size, "crc32c:0", 8, "crc32c:0", None, None)


BACKLOGS = st.lists(
    st.builds(
        backlog,
        st.integers(0, 0),
        st.integers(0, 1 << 40),
        st.integers(0, 5_000_000),
        st.none() | st.floats(0.01, 1 << 22),
        st.integers(0, 100),
    ),
    max_size=8,
).map(
    lambda found: [
        Backlog("orders", n, b.first_offset, b.start, b.end, b.bytes_per_offset) for n, b in enumerate(found)
    ]
)


@given(backlogs=BACKLOGS, cores=st.integers(1, 64))
def test_the_pieces_of_a_partition_follow_each_other_from_the_end_of_its_archive(
    backlogs: list[Backlog], cores: int
) -> None:
    pieces = plan_round(backlogs, cores)
    assert bool(pieces) == any(each.start < each.end for each in backlogs)
    for each in backlogs:
        mine = sorted((piece for piece in pieces if piece.partition == each.partition), key=lambda piece: piece.start)
        if not mine:
            continue
        assert (mine[0].first_offset, mine[0].start) == (each.first_offset, each.start)
        assert all(piece.start < piece.end for piece in mine)
        assert [piece.first_offset for piece in mine[1:]] == [piece.end for piece in mine[:-1]]
        assert [piece.start for piece in mine[1:]] == [piece.end for piece in mine[:-1]]
        assert mine[-1].end <= each.end
        if each.bytes_per_offset is None:
            # Where it will end is known only when it does, so nothing follows.
            assert [(piece.end, piece.max_bytes) for piece in mine] == [(each.end, FILE_BYTES)]


@given(backlogs=BACKLOGS, cores=st.integers(1, 64))
def test_a_round_is_bounded_in_bytes(backlogs: list[Backlog], cores: int) -> None:
    pieces = plan_round(backlogs, cores)
    largest = max((piece.estimated_bytes for piece in pieces), default=0.0)
    assert sum(piece.estimated_bytes for piece in pieces) <= max(largest, cores * 3 * FILE_BYTES)
    assert [piece.estimated_bytes for piece in pieces] == sorted((p.estimated_bytes for p in pieces), reverse=True)


def sizes_of(pieces: list[Piece], per_offset: int) -> list[int]:
    return [(piece.end - piece.start) * per_offset // MB for piece in pieces]


def test_much_of_one_partition_becomes_files_of_128_mb_on_all_cores() -> None:
    pieces = plan_round([backlog(0, 0, 10 << 20, 1024)], cores=2)
    assert sizes_of(pieces, 1024) == [128] * 6


def test_little_is_shared_by_the_cores_but_not_into_crumbs() -> None:
    assert sizes_of(plan_round([backlog(0, 0, 100 << 10, 1024)], cores=2), 1024) == [50, 50]
    assert sizes_of(plan_round([backlog(0, 0, 100 << 10, 1024)], cores=16), 1024) == [33, 33, 33]
    assert sizes_of(plan_round([backlog(0, 0, 30 << 10, 1024)], cores=16), 1024) == [30]


def test_partitions_with_little_left_do_not_wait_for_those_with_much() -> None:
    large = [backlog(number, 0, 10 << 20, 1024) for number in range(9)]
    pieces = plan_round([*large, backlog(9, 5, 10, 1024)], cores=2)
    assert [piece.partition for piece in pieces if piece.end - piece.start == 10] == [9]
    assert len(pieces) == 6


def test_the_size_of_records_is_told_by_the_last_files_that_are_large_enough() -> None:
    assert bytes_per_offset([]) is None
    assert bytes_per_offset([file_of(0, 0, 10, 4000)]) is None
    assert bytes_per_offset([file_of(0, 0, 10, 2 * MB)]) == 2 * MB / 10
    tiny = file_of(0, 120_000, 120_010, 4000)
    assert bytes_per_offset([file_of(0, 0, 20_000, 1), file_of(0, 20_000, 120_000, 900_000), tiny]) == 904_000 / 100_010


def test_files_behind_a_hole_are_told_apart() -> None:
    files = [file_of(0, 30, 40), file_of(0, 10, 20), file_of(1, 5, 6), file_of(0, 20, 25), file_of(2, 8, 9)]
    fitting, stray = without_holes(files, {0: 10, 2: 7})
    assert [(file.partition, file.first_offset) for file in fitting] == [(0, 10), (0, 20), (1, 5)]
    assert [(file.partition, file.first_offset) for file in stray] == [(0, 30), (2, 8)]
