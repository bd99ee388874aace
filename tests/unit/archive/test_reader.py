"""Reading an archive from any offset and by time, with bounded memory, and never past what is damaged."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive import errors
from tailrace.archive.cache import BoundedCache
from tailrace.archive.errors import (
    ArchiveCorruptError,
    ArchiveError,
    FileMissingError,
    LocationMissingError,
    OffsetNotArchivedError,
)
from tailrace.archive.layout import TopicArchive
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import load_snapshot, write_manifest
from tailrace.archive.reader import ArchiveReader, Caches, find_offset, read_batches
from tailrace.records.batch import iterate_batches
from tests.unit.archive.rows import Row, commit, read_rows, row, row_lists, store
from tests.unit.records.strategies import quick


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return open_location(f"file://{tmp_path}")


class CountingLocation:
    """A real location that tells which ranges were asked for."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self.ranges: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._location, name)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        self.ranges.append((name, start, length))
        return self._location.read_range(name, start, length)


def read_from(
    reader: ArchiveReader, archive: TopicArchive, offset: int, end: int, max_bytes: int, limit: int = 2**63 - 1
) -> list[Row]:
    """What a consumer gets that goes on where the last answer ended, from an offset to the archive's end or a limit."""
    rows = []
    while offset < end:
        data = reader.read(archive, 0, offset, max_bytes, limit)
        rows += read_rows(data, "aiokafka")
        *_, (_, last) = iterate_batches(data)
        assert last.next_offset > offset
        offset = last.next_offset
    assert offset == end
    return rows


@st.composite
def archives(draw: st.DrawFn) -> tuple[list[Row], list[int], int]:
    """Rows, the bounds of the files that they are in, and where the archive starts."""
    rows = draw(row_lists(step=st.integers(1, 4)))
    rows = [each._replace(offset=each.offset - rows[0].offset + 2) for each in rows]
    end = rows[-1].offset + draw(st.integers(1, 5))
    inner = draw(st.sets(st.integers(1, end - 1), max_size=4))
    return rows, sorted({0, end, *inner}), draw(st.integers(0, end - 1))


@quick
@given(
    archive=archives(),
    max_bytes=st.sampled_from((0, 150, 1 << 20)),
    row_group_bytes=st.sampled_from((1, 1 << 20)),
    cache_bytes=st.sampled_from((0, 1 << 20)),
)
def test_reading_from_any_offset_gives_every_later_record_once_and_ends_at_the_end(
    archive: tuple[list[Row], list[int], int], max_bytes: int, row_group_bytes: int, cache_bytes: int
) -> None:
    rows, bounds, start = archive
    with tempfile.TemporaryDirectory() as directory:
        location = open_location(directory)
        files = [
            store(
                location,
                [each for each in rows if low <= each.offset < high],
                (low, high),
                row_group_bytes=row_group_bytes,
            )
            for low, high in pairwise(bounds)
        ]
        head = commit(location, files, {0: start})
        reader = ArchiveReader(location, Caches.new(cache_bytes, cache_bytes, cache_bytes))
        end = bounds[-1]
        for offset in {start, (start + end) // 2, end - 1}:
            read = read_from(reader, head, offset, end, max_bytes)
            assert read == [each for each in rows if each.offset >= offset]
            limit = (offset + end + 1) // 2
            read = read_from(reader, head, offset, limit, max_bytes, limit)
            assert read == [each for each in rows if offset <= each.offset < limit]
        for offset in (start - 1, end, end + 1):
            with pytest.raises(OffsetNotArchivedError):
                reader.read(head, 0, offset, max_bytes)


@quick
@given(archive=archives(), times=st.lists(st.integers(-2, 2**45), max_size=4))
def test_an_offset_is_found_by_time_as_by_looking_at_every_record(
    archive: tuple[list[Row], list[int], int], times: list[int]
) -> None:
    rows, bounds, start = archive
    with tempfile.TemporaryDirectory() as directory:
        location = open_location(directory)
        files = [
            store(location, [each for each in rows if low <= each.offset < high], (low, high), row_group_bytes=100)
            for low, high in pairwise(bounds)
        ]
        head = commit(location, files, {0: start})
        reader = ArchiveReader(location)
        for time in (*times, *(each.timestamp for each in rows), max(each.timestamp for each in rows) + 1):
            expected = next((each for each in rows if each.offset >= start and each.timestamp >= time), None)
            found = reader.offset_for_timestamp(head, 0, time)
            assert found == (expected and (expected.offset, expected.timestamp, expected.leader_epoch))


def test_a_partition_that_is_not_archived_says_so(location: Location) -> None:
    head = commit(location, [store(location, [row(0)], (0, 1))])
    reader = ArchiveReader(location)
    with pytest.raises(OffsetNotArchivedError, match="has no records of orders-3"):
        reader.read(head, 3, 0, 100)
    with pytest.raises(OffsetNotArchivedError, match="which has 0 to 0"):
        reader.read(head, 0, 1, 100)
    assert reader.offset_for_timestamp(head, 3, 0) is None


def test_an_answer_is_as_large_as_was_asked_for_across_row_groups_and_files(location: Location) -> None:
    rows = [row(number, 500) for number in range(400)]
    files = [
        store(location, rows[low : low + 100], (low, low + 100), row_group_bytes=10_000) for low in range(0, 400, 100)
    ]
    head = commit(location, files)
    reader = ArchiveReader(location)
    data = reader.read(head, 0, 50, 100_000)
    assert 95_000 < len(data) <= 100_000
    count = len(read_rows(data, "aiokafka"))
    assert read_rows(data, "aiokafka") == rows[50 : 50 + count]
    # A record that is larger than that is given nevertheless, but alone.
    assert read_rows(reader.read(head, 0, 50, 10), "aiokafka") == [rows[50]]


def test_a_look_up_reads_a_footer_and_one_row_group_and_again_nothing(location: Location) -> None:
    rows = [row(number, value=random.Random(number).randbytes(1000)) for number in range(1000)]
    file = store(location, rows, (0, 1000), row_group_bytes=50_000)
    head = commit(location, [file])
    counting = CountingLocation(location)
    reader = ArchiveReader(counting)
    assert read_rows(reader.read(head, 0, 500, 2000), "aiokafka")[0] == rows[500]
    assert len(counting.ranges) == 2
    assert sum(length for _, _, length in counting.ranges) < file.bytes / 5
    assert read_rows(reader.read(head, 0, 505, 2000), "aiokafka")[0] == rows[505]
    assert len(counting.ranges) == 2


def test_reading_from_front_to_back_asks_for_many_row_groups_at_once(location: Location) -> None:
    rows = [row(number, value=random.Random(number).randbytes(1000)) for number in range(3000)]
    file = store(location, rows, (0, 3000), row_group_bytes=20_000)
    head = commit(location, [file])
    counting = CountingLocation(location)
    reader = ArchiveReader(counting)
    assert read_from(reader, head, 0, 3000, 20_000) == rows
    assert len(counting.ranges) <= 5


def test_what_is_kept_stays_within_its_bounds(location: Location) -> None:
    rows = [row(number, 1000) for number in range(2000)]
    head = commit(location, [store(location, rows, (0, 2000), row_group_bytes=50_000)])
    caches = Caches.new(row_group_bytes=200_000)
    reader = ArchiveReader(location, caches)
    assert read_from(reader, head, 0, 2000, 50_000) == rows
    assert 0 < caches.row_groups.bytes <= 200_000


def test_a_later_version_is_read_from_where_the_known_one_ends(location: Location) -> None:
    first = commit(location, [store(location, [row(0)], (0, 1))])
    reader = ArchiveReader(location)
    snapshot = reader.snapshot(first)
    manifest = snapshot.commit([store(location, [row(1)], (1, 2))])
    later = TopicArchive(location.uri, first.topic, first.lineage, write_manifest(location, manifest))
    # Without the first manifest nothing but what the reader knows could say what came before.
    location.delete(f"{first.directory}/manifest/{first.manifest}")
    with pytest.raises(FileMissingError):
        load_snapshot(location, later)
    assert read_rows(reader.read(later, 0, 0, 1000), "aiokafka") == [row(0), row(1)]
    assert read_rows(reader.read(first, 0, 0, 1000), "aiokafka") == [row(0)]


class Damage:
    """One archived file, and its bytes changed in place."""

    def __init__(self, directory: Path) -> None:
        self.location = open_location(str(directory))
        self.rows = [row(number, 100, headers=(("h", b"x"),)) for number in range(60)]
        self.file = store(self.location, self.rows, (0, 60), row_group_bytes=3000)
        self.head = commit(self.location, [self.file])
        self.path = directory / self.head.directory / self.file.name
        self.content = self.path.read_bytes()

    def read(self) -> list[Row]:
        return read_from(ArchiveReader(self.location), self.head, 0, 60, 1 << 20)


@pytest.fixture
def damage(tmp_path: Path) -> Iterator[Damage]:
    yield Damage(tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o700)


def test_no_altered_byte_is_ever_served(damage: Damage) -> None:
    seed = 20
    chosen = random.Random(seed)
    noticed = 0
    for at in chosen.sample(range(4, len(damage.content)), 200):
        altered = bytearray(damage.content)
        altered[at] ^= 1 << chosen.randrange(8)
        damage.path.write_bytes(altered)
        try:
            # Columns that say the same of all records, as the topic's name, are not read for a consumer.
            assert damage.read() == damage.rows, f"seed {seed}, byte {at}"
        except ArchiveCorruptError:
            noticed += 1
    assert noticed > 150


def test_a_file_that_is_cut_or_missing_is_an_error_of_its_own(damage: Damage) -> None:
    for length in (0, 10, len(damage.content) // 2, len(damage.content) - 1):
        damage.path.write_bytes(damage.content[:length])
        with pytest.raises(ArchiveCorruptError):
            damage.read()
    damage.path.unlink()
    with pytest.raises(FileMissingError, match=r"\.parquet is missing"):
        damage.read()


def test_a_location_that_disappears_is_told_apart_from_a_file_that_does(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    root.mkdir()
    location = open_location(str(root))
    head = commit(location, [store(location, [row(0)], (0, 1))])
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(LocationMissingError, match="check that it is mounted here"):
        ArchiveReader(location).read(head, 0, 0, 100)


def test_a_broker_calls_functions_of_a_helper_process(location: Location) -> None:
    rows = [row(number) for number in range(10)]
    head = pickle.loads(pickle.dumps(commit(location, [store(location, rows, (0, 10))])))
    assert read_rows(read_batches(head, 0, 3, 1 << 20), "kafka-python") == rows[3:]
    found = find_offset(head, 0, rows[4].timestamp)
    assert pickle.loads(pickle.dumps(found)) == (4, rows[4].timestamp, 3)


def test_every_error_comes_through_to_another_process() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ArchiveError)]
    assert len(classes) > 8
    for each in classes:
        copy = pickle.loads(pickle.dumps(each("what is wrong")))
        assert (type(copy), str(copy), copy.is_retriable) == (each, "what is wrong", each.is_retriable)
    assert {each.__name__ for each in classes if each.is_retriable} == {"ArchiveUnreachableError", "ArchiveFullError"}


def test_a_process_that_only_knows_of_archives_does_not_load_pyarrow() -> None:
    program = (
        "import sys, tailrace.archive.errors, tailrace.archive.layout, tailrace.archive.manifest\n"
        "from tailrace.archive.location import open_location\n"
        "open_location('/tmp')\n"
        "print(sorted({'pyarrow', 'numpy', 'fsspec', 'requests'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_cache_lets_go_of_what_was_not_used_for_longest() -> None:
    cache: BoundedCache[str] = BoundedCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    cache.put("a", "larger", 6)
    assert (cache.bytes, len(cache)) == (10, 2)
    cache.put("huge", "H", 100)
    assert (cache.get("huge"), len(cache)) == ("H", 1)
