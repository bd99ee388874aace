"""One contract for all places where archives can be: a directory, S3-compatible object storage, and HDFS."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator
from threading import Barrier, Thread

import pytest

from tailrace.archive.errors import (
    ArchiveCorruptError,
    ArchiveDeniedError,
    ArchiveError,
    ArchiveUnreachableError,
    ArchiveUriError,
    FileMissingError,
    LocationMissingError,
)
from tailrace.archive.location import Location
from tailrace.archive.reader import ArchiveReader
from tailrace.archive.verify import Problem, verify
from tests.contract.archive_locations import KINDS, Place, RunningLocations, S3Place
from tests.unit.archive.rows import Row, commit, read_rows, row, store

#: As long as in an archive, with every character that a topic's name and id can have.
NAME = "topic=a.b_c-d/id=-_9kQ1rYTmK3v0Zx8yLw-A/partition=0/00000000000000000000-00000000000000000004-ab.parquet"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLocations]:
    """The servers that run for all tests."""
    locations = RunningLocations(lambda name: tmp_path_factory.mktemp(name))
    yield locations
    locations.shutdown()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, running: RunningLocations) -> Place:
    """A new location of each kind."""
    return running.new(request.param)


@pytest.fixture
def location(place: Place) -> Iterator[Location]:
    opened = place.open()
    yield opened
    opened.close()


def test_a_file_is_read_as_it_was_written_whole_and_in_ranges(location: Location) -> None:
    content = random.Random(1).randbytes(300_000)
    location.check()
    location.write_new(NAME, content)
    assert location.size(NAME) == len(content)
    assert location.read_all(NAME) == content
    for start, length in ((0, 1), (0, len(content)), (299_999, 1), (100_000, 150_000), (5, 0)):
        assert location.read_range(NAME, start, length) == content[start : start + length]
    for start, length in ((299_999, 2), (300_000, 1), (0, 300_001)):
        with pytest.raises(ArchiveCorruptError, match="ends after 300000 of"):
            location.read_range(NAME, start, length)


@pytest.mark.parametrize("size", [0, 1, 24_000_000])
def test_files_of_any_size_are_written_from_any_buffer(location: Location, size: int) -> None:
    content = random.Random(size).randbytes(size)
    location.write_new("a/b", memoryview(bytearray(content)))
    assert location.read_all("a/b") == content


def test_files_are_listed_below_a_directory_in_order_and_deleted_once(location: Location) -> None:
    for name in ("t/b/2", "t/a/1", "t/a/10", "tt/other", "t/c"):
        location.write_new(name, name.encode())
    listed = list(location.list("t"))
    assert [(entry.name, entry.size) for entry in listed] == [("t/a/1", 5), ("t/a/10", 6), ("t/b/2", 5), ("t/c", 3)]
    # All of them were written just now; the location's clock may differ.
    assert all(abs(entry.modified_ms - time.time() * 1000) < 600_000 for entry in listed)
    assert list(location.list("t/a")) == listed[:2]
    assert list(location.list("nothing/here")) == []
    location.delete("t/a/1")
    location.delete("t/a/1")
    location.delete("never/was")
    assert list(location.list("t")) == listed[1:]


def test_several_threads_use_a_location_at_once(location: Location) -> None:
    failures: list[BaseException] = []
    together = Barrier(4)

    def work(number: int) -> None:
        try:
            together.wait()
            for turn in range(5):
                name = f"shared/{number}/{turn}"
                content = name.encode() * 1000
                location.write_new(name, content)
                assert location.read_range(name, 10, 500) == content[10:510]
        except BaseException as error:  # noqa: BLE001  told below, in the test's own thread
            failures.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(location.list("shared"))) == 20


def test_a_file_that_is_missing_is_told_apart_from_a_location_that_is(place: Place, location: Location) -> None:
    for operation in (
        lambda: location.read_all(NAME),
        lambda: location.read_range(NAME, 0, 1),
        lambda: location.size(NAME),
    ):
        with pytest.raises(FileMissingError, match=r"ab\.parquet is missing"):
            operation()
    assert_all_raise(place.open_missing(), LocationMissingError, is_retriable=False)


def test_a_file_that_disappears_after_it_was_read_is_missing(location: Location) -> None:
    location.write_new(NAME, b"content" * 100)
    assert location.read_range(NAME, 7, 7) == b"content"
    location.delete(NAME)
    with pytest.raises(FileMissingError):
        location.read_range(NAME, 7, 7)


def test_a_location_that_disappears_says_so_whatever_is_asked(place: Place, location: Location) -> None:
    location.write_new(NAME, b"content")
    assert location.read_range(NAME, 0, 3) == b"con"
    place.remove()
    assert_all_raise(location, LocationMissingError, is_retriable=False)


def test_wrong_credentials_are_refused_and_called_so(place: Place, location: Location) -> None:
    location.write_new(NAME, b"content")
    for refused in place.open_refused():
        assert_all_raise(refused, ArchiveDeniedError, is_retriable=False)
        refused.close()


def test_a_location_where_nobody_listens_is_unreachable_and_worth_another_try(place: Place) -> None:
    unreachable = place.open_unreachable()
    if unreachable is not None:
        assert_all_raise(unreachable, ArchiveUnreachableError, is_retriable=True)
        unreachable.close()


def assert_all_raise(location: Location, error: type[ArchiveError], *, is_retriable: bool) -> None:
    """Every operation gives the same kind of error, which names the location."""
    operations = {
        "check": location.check,
        "read_all": lambda: location.read_all(NAME),
        "read_range": lambda: location.read_range(NAME, 0, 1),
        "size": lambda: location.size(NAME),
        "write_new": lambda: location.write_new("a/new/file", b"content"),
        "list": lambda: list(location.list("a")),
        "delete": lambda: location.delete(NAME),
    }
    for name, operation in operations.items():
        with pytest.raises(ArchiveError) as raised:
            operation()
        assert raised.type is error, f"{name}: {raised.value!r}"
        assert raised.value.is_retriable is is_retriable


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a\0b"])
def test_no_name_leads_out_of_a_location(location: Location, name: str) -> None:
    for operation in (location.read_all, location.size, location.delete, lambda name: location.write_new(name, b"")):
        with pytest.raises(ArchiveUriError):
            operation(name)


def test_an_archive_is_written_read_verified_and_found_damaged(place: Place, location: Location) -> None:
    rows: list[Row] = [row(number * 2, 300, value=random.Random(number).randbytes(300)) for number in range(500)]
    files = [
        store(location, rows[:250], (0, 500), row_group_bytes=20_000),
        store(location, rows[250:], (500, 1003), row_group_bytes=20_000),
    ]
    archive = dataclasses.replace(commit(location, files), uri=location.uri)
    reader = ArchiveReader(location)
    data = reader.read(archive, 0, 0, 1 << 20)
    assert read_rows(data, "aiokafka") == rows
    found = reader.offset_for_timestamp(archive, 0, rows[300].timestamp)
    assert found is not None
    assert found.offset == rows[300].offset
    report = verify(location, archive)
    assert report.is_sound
    assert report.rows == 500
    name = f"{archive.directory}/{files[1].name}"
    content = bytearray(location.read_all(name))
    content[len(content) // 3] ^= 1
    place.overwrite(name, bytes(content))
    assert [finding.problem for finding in verify(location, archive).findings] == [Problem.CHECKSUM]
    place.overwrite(name, bytes(content[: len(content) // 2]))
    assert [finding.problem for finding in verify(location, archive).findings] == [Problem.SIZE]
    with pytest.raises(ArchiveCorruptError):
        ArchiveReader(location).read(archive, 0, 600, 1 << 20)
    location.delete(name)
    assert [finding.problem for finding in verify(location, archive).findings] == [Problem.MISSING]
    with pytest.raises(FileMissingError):
        ArchiveReader(location).read(archive, 0, 600, 1 << 20)


def test_a_byte_that_decays_in_an_object_store_is_noticed(running: RunningLocations) -> None:
    place = running.new("s3")
    assert isinstance(place, S3Place)
    location = place.open()
    file = store(location, [row(0, 1000)], (0, 1))
    archive = commit(location, [file])
    place.decay(f"{archive.directory}/{file.name}")
    assert [finding.problem for finding in verify(location, archive).findings] == [Problem.CHECKSUM]
    with pytest.raises(ArchiveCorruptError):
        ArchiveReader(location).read(archive, 0, 0, 1000)
