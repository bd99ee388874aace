"""Undecodable batches in an archive: named by manifests, returned unchanged, and decoded again on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.archive.cleaning import find_leftovers
from tailrace.archive.compaction import commit_of, plan_expiry, plan_merges, write_merged
from tailrace.archive.errors import ArchiveCorruptError, FileMissingError, InvalidCommitError
from tailrace.archive.layout import TopicArchive, manifest_path
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import (
    CHECKPOINT_INTERVAL,
    ArchivedFile,
    Snapshot,
    load_snapshot,
    read_manifest,
    write_manifest,
)
from tailrace.archive.quarantine import SideFile, SideFileWriter, read_side_file
from tailrace.archive.reader import ArchiveReader
from tailrace.archive.verify import Problem, verify
from tailrace.records.batch import assign_offset, iterate_batches, read_header
from tests.support.batches.poison import poison_batch
from tests.unit.archive.rows import TOPIC, TOPIC_ID, read_rows, row, store

REASON = "Cannot decompress records"


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return open_location(f"file://{tmp_path}")


def poison(base_offset: int, count: int, size: int = 10) -> bytes:
    """A batch of an offset that nobody can decode."""
    batch = bytearray(poison_batch([b"x" * size] * count))
    assign_offset(batch, base_offset, 3)
    return bytes(batch)


def put_aside(location: Location, span: tuple[int, int], *batches: bytes) -> SideFile:
    """A side file for the file of records that covers a span."""
    writer = SideFileWriter(TOPIC, TOPIC_ID, 0, span[0])
    for batch in batches:
        writer.add(read_header(batch), batch, REASON)
    file = writer.store(location, span[1])
    assert file is not None
    return file


def commit(
    location: Location,
    files: list[ArchivedFile],
    aside: list[SideFile],
    before: TopicArchive | None = None,
    removed: tuple[str, ...] = (),
) -> TopicArchive:
    archive = before or TopicArchive(location.uri, TOPIC, TOPIC_ID, None)
    manifest = load_snapshot(location, archive).commit(files, removed, quarantined=aside)
    return TopicArchive(location.uri, TOPIC, TOPIC_ID, write_manifest(location, manifest))


def archive_with_quarantine(location: Location) -> TopicArchive:
    """Records at 0 to 9 and 15 to 19 in one file, a raw batch from 10 to 14, and one from 20 to 24 behind them."""
    file = store(location, [row(each) for each in (*range(10), *range(15, 20))], (0, 25))
    return commit(location, [file], [put_aside(location, (0, 25), poison(10, 5), poison(20, 5))])


def fetched(reader: ArchiveReader, archive: TopicArchive, offset: int, max_bytes: int) -> tuple[bytes, int]:
    data = reader.read(archive, 0, offset, max_bytes)
    return data, max(header.next_offset for _, header in iterate_batches(data))


def content(reader: ArchiveReader, archive: TopicArchive, offset: int, end: int, max_bytes: int) -> list[object]:
    """Records by offset and raw batches by their bytes, as a consumer gets them that goes on from answer to answer."""
    found: list[object] = []
    while offset < end:
        data, after = fetched(reader, archive, offset, max_bytes)
        for position, header in iterate_batches(data):
            batch = data[position : position + header.size]
            found += [batch] if header.compression else [each.offset for each in read_rows(batch, "aiokafka")]
        assert after > offset
        offset = after
    return found


@pytest.mark.parametrize("max_bytes", [1, 200, 700, 1 << 20])
@pytest.mark.parametrize("start", [0, 5, 10, 12, 14, 15, 20, 24])
def test_a_consumer_gets_raw_batches_at_their_place_between_records(
    location: Location, start: int, max_bytes: int
) -> None:
    archive = archive_with_quarantine(location)
    expected: list[object] = [each for each in range(10) if each >= start]
    expected += [poison(10, 5)] if start < 15 else []
    expected += [each for each in range(15, 20) if each >= start]
    expected.append(poison(20, 5))
    assert content(ArchiveReader(location), archive, start, 25, max_bytes) == expected


def test_a_raw_batch_that_crosses_two_files_is_given_back_once(location: Location) -> None:
    crossing = poison(8, 4)
    first = store(location, [row(each) for each in range(8)], (0, 10))
    second = store(location, [row(each) for each in range(12, 15)], (10, 15))
    aside = [put_aside(location, (0, 10), crossing), put_aside(location, (10, 15), crossing)]
    assert [(file.first_offset, file.next_offset, file.batches) for file in aside] == [(8, 10, 1), (10, 12, 0)]
    archive = commit(location, [first, second], aside)
    reader = ArchiveReader(location)
    assert content(reader, archive, 0, 15, 1 << 20) == [*range(8), crossing, *range(12, 15)]
    assert content(reader, archive, 11, 15, 1 << 20) == [crossing, *range(12, 15)]
    assert reader.snapshot(archive).quarantined_batches == 1


def test_a_file_of_nothing_but_raw_batches_can_be_read(location: Location) -> None:
    batches = [poison(0, 5), poison(5, 5, size=2000)]
    archive = commit(location, [store(location, [], (0, 12))], [put_aside(location, (0, 12), *batches)])
    assert content(ArchiveReader(location), archive, 0, 10, 1 << 20) == batches
    assert fetched(ArchiveReader(location), archive, 0, 1 << 20)[1] == 12


def test_a_side_file_that_is_missing_or_altered_is_an_error_and_never_a_gap(location: Location, tmp_path: Path) -> None:
    archive = archive_with_quarantine(location)
    (file,) = load_snapshot(location, archive).side_files
    path = tmp_path / archive.directory / file.name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    with pytest.raises(ArchiveCorruptError, match="altered"):
        ArchiveReader(location).read(archive, 0, 10, 1 << 20)
    path.unlink()
    with pytest.raises(FileMissingError):
        ArchiveReader(location).read(archive, 0, 10, 1 << 20)


def test_only_manifests_with_side_files_need_a_newer_reader(location: Location) -> None:
    def format_of(archive: TopicArchive) -> int:
        assert archive.manifest is not None
        content = location.read_all(manifest_path(archive.directory, archive.manifest))
        return int(json.loads(content)["format"])

    first = commit(location, [store(location, [row(0)], (0, 1))], [])
    second = commit(location, [store(location, [row(1)], (1, 10))], [put_aside(location, (1, 10), poison(5, 5))], first)
    third = commit(location, [store(location, [row(10)], (10, 11))], [], second)
    (aside,) = load_snapshot(location, third).side_files
    fourth = commit(location, [store(location, [row(11)], (11, 12))], [], third, (aside.name,))
    assert [format_of(each) for each in (first, second, third, fourth)] == [1, 2, 2, 1]
    assert not load_snapshot(location, fourth).side_files


def test_checkpoints_list_side_files(location: Location) -> None:
    archive = commit(location, [store(location, [], (0, 5))], [put_aside(location, (0, 5), poison(0, 5))])
    for first in range(5, 5 + CHECKPOINT_INTERVAL):
        archive = commit(location, [store(location, [row(first)], (first, first + 1))], [], archive)
    snapshot = load_snapshot(location, archive)
    assert snapshot.version > CHECKPOINT_INTERVAL
    assert [(file.first_offset, file.records, file.reason) for file in snapshot.side_files] == [(0, 5, REASON)]
    at = archive.manifest
    while at is not None and read_manifest(location, archive.directory, at).files is None:
        at = read_manifest(location, archive.directory, at).parent
    assert at is not None
    assert len(read_manifest(location, archive.directory, at).side_files) == 1


def test_a_side_file_outside_of_the_files_or_over_another_is_refused(location: Location) -> None:
    empty = Snapshot(TOPIC, TOPIC_ID)
    file = store(location, [], (0, 10))
    beyond = put_aside(location, (0, 20), poison(15, 5))
    with pytest.raises(InvalidCommitError, match="is outside of the data files"):
        empty.commit([file], quarantined=[beyond])
    once, again = (put_aside(location, (0, 10), poison(2, 5)) for _ in range(2))
    with pytest.raises(InvalidCommitError, match="overlaps"):
        empty.commit([file], quarantined=[once, again])


def test_verify_checks_side_files_and_counts_their_batches(location: Location, tmp_path: Path) -> None:
    archive = archive_with_quarantine(location)
    report = verify(location, archive)
    assert (report.is_sound, report.quarantined_batches, report.orphans) == (True, 2, [])
    (file,) = load_snapshot(location, archive).side_files
    path = tmp_path / archive.directory / file.name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    assert [each.problem for each in verify(location, archive).findings] == [Problem.CHECKSUM]
    path.write_bytes(whole[:-1])
    assert [each.problem for each in verify(location, archive).findings] == [Problem.SIZE]
    path.unlink()
    assert [each.problem for each in verify(location, archive).findings] == [Problem.MISSING]


def test_compaction_keeps_side_files_and_expiry_takes_them_out(location: Location) -> None:
    archive = archive_with_quarantine(location)
    for first in range(25, 28):
        archive = commit(location, [store(location, [row(first)], (first, first + 1))], [], archive)
    snapshot = load_snapshot(location, archive)
    nothing = plan_expiry(snapshot, {}, -1, 0)
    (merge,) = plan_merges(snapshot, nothing)
    merged = commit_of(snapshot, [(merge, write_merged(location, snapshot, merge))], nothing)
    archive = TopicArchive(location.uri, TOPIC, TOPIC_ID, write_manifest(location, merged))
    expected = [*range(10), poison(10, 5), *range(15, 20), poison(20, 5), *range(25, 28)]
    assert content(ArchiveReader(location), archive, 0, 28, 1 << 20) == expected

    snapshot = load_snapshot(location, archive)
    assert not plan_expiry(snapshot, {0: 22}, -1, 0).side_files
    expiry = plan_expiry(snapshot, {0: 25}, -1, 0)
    assert expiry.side_files == snapshot.side_files
    after = TopicArchive(location.uri, TOPIC, TOPIC_ID, write_manifest(location, commit_of(snapshot, [], expiry)))
    assert not load_snapshot(location, after).side_files


def test_a_side_file_is_deleted_only_when_nobody_needs_it(location: Location) -> None:
    never_ms = 1 << 60
    archive = archive_with_quarantine(location)
    lost = put_aside(location, (0, 25), poison(10, 5))
    ahead = put_aside(location, (30, 40), poison(30, 5))

    def deletable() -> set[str]:
        snapshot = load_snapshot(location, archive)
        found = find_leftovers(location, archive, snapshot, now_ms=never_ms, grace_ms=0)
        return {entry.name.removeprefix(f"{archive.directory}/") for entry in found.deletable}

    assert deletable() == {lost.name}
    (needed,) = load_snapshot(location, archive).side_files
    archive = commit(location, [store(location, [row(25)], (25, 26))], [], archive, (needed.name,))
    assert deletable() == {lost.name, needed.name}
    assert ahead.name not in deletable()


def test_a_side_file_tells_its_batches_by_offset(location: Location) -> None:
    archive = archive_with_quarantine(location)
    (file,) = load_snapshot(location, archive).side_files
    found = read_side_file(location, archive.directory, file)
    assert [batch.data for batch in found] == [poison(10, 5), poison(20, 5)]
    assert [header.base_offset for header in found.between(14, 20)] == [10]
    assert found.between(15, 20) == []
    assert (file.first_offset, file.next_offset, file.batches, file.records) == (10, 25, 2, 10)
