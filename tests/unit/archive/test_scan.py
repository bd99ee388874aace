"""A scan returns only the requested rows and columns, and reads no more than necessary."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.archive.errors import ArchiveCorruptError, FileMissingError
from tailrace.archive.layout import topic_directory
from tailrace.archive.local_directory import LocalDirectory
from tailrace.archive.location import open_location
from tailrace.archive.manifest import ArchivedFile
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.archive.scan import EVER, Wanted, scan_files
from tests.unit.archive.rows import TOPIC, TOPIC_ID, Row, row, row_lists, store, to_table

DIRECTORY = topic_directory(TOPIC, TOPIC_ID)
ALL_COLUMNS = tuple(RECORD_SCHEMA.names)
_random = Random(7)
#: Values that do not compress, so that most bytes of a file are theirs.
ROWS = [row(offset, timestamp=1000 * offset, value=_random.randbytes(1000)) for offset in range(0, 3000, 3)]
ROW_GROUP_BYTES = 100_000


class CountingDirectory(LocalDirectory):
    """A directory that knows how much of it was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), root)
        self.bytes_read = 0

    def read_range(self, name: str, start: int, length: int) -> bytes:
        self.bytes_read += length
        return super().read_range(name, start, length)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArchivedFile]:
    """One file of a thousand rows in many row groups, a second apart, with gaps between its offsets."""
    root = tmp_path_factory.mktemp("archive")
    return root, store(open_location(str(root)), ROWS, (0, 3000), row_group_bytes=ROW_GROUP_BYTES)


def scan(place: tuple[Path, ArchivedFile], wanted: Wanted) -> tuple[list[pa.Table], int]:
    """The tables of a scan, and how many bytes it read beside the footer."""
    location = CountingDirectory(place[0])
    tables = [rows.table for rows in scan_files(location, DIRECTORY, [place[1]], wanted)]
    return tables, max(0, location.bytes_read - place[1].footer_bytes)


def offsets_of(tables: list[pa.Table]) -> list[int]:
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


def test_all_rows_come_as_they_were_written(place: tuple[Path, ArchivedFile]) -> None:
    tables, _ = scan(place, Wanted(0, 3000, ALL_COLUMNS))
    assert pa.concat_tables(tables).select(ALL_COLUMNS).cast(RECORD_SCHEMA).equals(to_table(ROWS))


@settings(max_examples=50)
@given(start=st.integers(-5, 3010), size=st.integers(0, 3010), first=st.integers(-1, 3010), span=st.integers(0, 3010))
def test_exactly_the_offsets_and_times_that_are_wanted_come(
    place: tuple[Path, ArchivedFile], start: int, size: int, first: int, span: int
) -> None:
    times = 1000 * first, 1000 * (first + span)
    tables, _ = scan(place, Wanted(start, start + size, (), times))
    expected = [
        each.offset for each in ROWS if start <= each.offset < start + size and first <= each.offset <= first + span
    ]
    assert offsets_of(tables) == expected


def test_only_the_bytes_of_the_columns_that_are_wanted_are_read(place: tuple[Path, ArchivedFile]) -> None:
    everything = scan(place, Wanted(0, 3000, ALL_COLUMNS))[1]
    tables, without_contents = scan(place, Wanted(0, 3000, ("timestamp",)))
    assert sorted(tables[0].column_names) == ["offset", "timestamp"]
    assert sum(table.num_rows for table in tables) == len(ROWS)
    assert everything > 0.9 * (place[1].bytes - place[1].footer_bytes)
    assert without_contents < everything / 50


def test_row_groups_of_other_offsets_and_times_are_not_read(place: tuple[Path, ArchivedFile]) -> None:
    everything = scan(place, Wanted(0, 3000, ALL_COLUMNS))[1]
    by_offset, bytes_by_offset = scan(place, Wanted(1500, 1503, ALL_COLUMNS))
    by_time, bytes_by_time = scan(place, Wanted(0, 3000, ALL_COLUMNS, (1_500_000, 1_500_000)))
    assert offsets_of(by_offset) == offsets_of(by_time) == [1500]
    assert bytes_by_offset == bytes_by_time < everything / 8
    assert scan(place, Wanted(0, 3000, ALL_COLUMNS, (2_997_001, EVER[1]))) == ([], 0)


@settings(max_examples=30)
@given(rows=row_lists())
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    root = tmp_path_factory.mktemp("any")
    span = rows[0].offset, rows[-1].offset + 1
    file = store(open_location(str(root)), rows, span, row_group_bytes=200)
    tables, _ = scan((root, file), Wanted(*span, ALL_COLUMNS))
    assert pa.concat_tables(tables).select(ALL_COLUMNS).cast(RECORD_SCHEMA).equals(to_table(rows))


def test_a_file_without_rows_is_not_even_opened(tmp_path: Path) -> None:
    file = store(open_location(str(tmp_path)), [], (0, 10))
    (tmp_path / DIRECTORY / file.name).unlink()
    assert scan((tmp_path, file), Wanted(0, 10, ALL_COLUMNS)) == ([], 0)


def test_an_altered_byte_of_a_column_that_is_read_is_noticed(tmp_path: Path) -> None:
    file = store(open_location(str(tmp_path)), ROWS, (0, 3000))
    path = tmp_path / DIRECTORY / file.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveCorruptError, match="altered or truncated"):
        scan((tmp_path, file), Wanted(0, 3000, ALL_COLUMNS))
    path.unlink()
    with pytest.raises(FileMissingError):
        scan((tmp_path, file), Wanted(0, 3000, ALL_COLUMNS))
