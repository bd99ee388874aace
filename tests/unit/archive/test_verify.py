"""Verification of an archive: it names every problem, and does not count unused files as problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.archive.errors import FileExistsInArchiveError, InvalidCommitError, LocationMissingError, NewerFormatError
from tailrace.archive.layout import TopicArchive, checksum, is_data_file, is_manifest
from tailrace.archive.location import open_location
from tailrace.archive.manifest import ArchivedFile, load_snapshot, write_manifest
from tailrace.archive.parquet import FileWriter
from tailrace.archive.verify import Problem, verify
from tests.support.archives.data_file import write_file
from tests.unit.archive.rows import TOPIC, TOPIC_ID, commit, row, store, to_table
from tests.unit.archive.test_manifest import rewritten

Damage = Callable[[Path], object]


class World:
    """An archive of two partitions and three files, in two versions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = open_location(str(root))
        first = commit(self.location, [store(self.location, [row(0), row(3)], (0, 5))])
        snapshot = load_snapshot(self.location, first)
        self.files = [
            *snapshot.files,
            store(self.location, [row(5), row(6)], (5, 9)),
            store(self.location, [], (2, 4), partition=1),
        ]
        manifest = snapshot.commit(self.files[1:])
        self.head = TopicArchive(first.uri, TOPIC, TOPIC_ID, write_manifest(self.location, manifest))
        self.first = first

    def path(self, file: ArchivedFile) -> Path:
        return self.root / self.head.directory / file.name

    def problems(self) -> list[tuple[Problem, str]]:
        return [(finding.problem, finding.name) for finding in verify(self.location, self.head).findings]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_sound_archive_is_said_to_be_so_with_what_it_has(world: World) -> None:
    seen: list[ArchivedFile] = []
    report = verify(world.location, world.head, {0: (0, 9), 1: (2, 4)}, seen.append)
    assert report.is_sound
    assert (report.version, report.files, report.rows) == (2, 3, 4)
    assert report.bytes == sum(file.bytes for file in world.files)
    assert (report.orphans, seen) == ([], world.files)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), Problem.MISSING),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), Problem.SIZE),
        (lambda path: path.write_bytes(b""), Problem.SIZE),
        (_flip, Problem.CHECKSUM),
    ],
)
def test_each_damaged_file_is_named_and_the_others_are_checked_nevertheless(
    world: World, damage: Damage, problem: Problem
) -> None:
    damage(world.path(world.files[0]))
    damage(world.path(world.files[1]))
    assert world.problems() == [(problem, world.files[0].name), (problem, world.files[1].name)]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 3},
        {"min_timestamp": 0},
        {"first_offset": 1, "partition": 5},
        {"partition": 5},
        {"footer_checksum": "crc32c:00000000"},
    ],
)
def test_a_file_that_is_not_what_its_entry_says_is_found(world: World, changes: dict[str, int]) -> None:
    lie = dataclasses.replace(world.files[0], **changes)
    head = commit(world.location, [lie])
    findings = verify(world.location, head).findings
    assert {(finding.problem, finding.name) for finding in findings} == {(Problem.CONTENT, lie.name)}


def test_other_bytes_of_the_same_length_and_a_file_that_is_not_parquet_are_found(world: World) -> None:
    text = b"x" * world.files[0].bytes
    world.path(world.files[0]).write_bytes(text)
    assert world.problems() == [(Problem.CHECKSUM, world.files[0].name)]
    lie = dataclasses.replace(
        world.files[0], checksum=checksum(text), footer_checksum=checksum(text[-world.files[0].footer_bytes :])
    )
    [finding] = verify(world.location, commit(world.location, [lie])).findings
    assert finding.problem is Problem.CONTENT


def test_coverage_that_the_brokers_see_otherwise_is_found(world: World) -> None:
    report = verify(world.location, world.head, {0: (0, 12), 1: (2, 4)})
    assert [finding.problem for finding in report.findings] == [Problem.COVERAGE]
    assert "0: 0 to 11" in report.findings[0].message
    assert "0: 0 to 8" in report.findings[0].message


@pytest.mark.parametrize("damage", [_flip, Path.unlink])
def test_a_damaged_manifest_is_found(world: World, damage: Damage) -> None:
    damage(world.root / world.head.directory / "manifest" / str(world.first.manifest))
    report = verify(world.location, world.head)
    assert [finding.problem for finding in report.findings] == [Problem.MANIFEST]
    assert not report.is_sound


def test_an_archive_of_which_nothing_can_be_known_is_an_error(world: World, tmp_path: Path) -> None:
    newer = rewritten(world.location, str(world.first.manifest), format=9)
    with pytest.raises(NewerFormatError):
        verify(world.location, dataclasses.replace(world.head, manifest=newer))
    with pytest.raises(LocationMissingError):
        verify(open_location(str(tmp_path / "gone")), world.head)


def test_files_that_no_manifest_names_are_orphans_and_harm_nobody(world: World) -> None:
    loser = store(world.location, [row(9)], (9, 10))
    snapshot = load_snapshot(world.location, world.head)
    lost = write_manifest(world.location, snapshot.commit([loser]))
    torn = world.path(loser).with_name("torn.parquet")
    torn.write_bytes(b"PAR1")
    report = verify(world.location, world.head)
    assert report.is_sound
    directory = world.head.directory
    names = {entry.name: entry.size for entry in report.orphans}
    assert set(names) == {
        f"{directory}/{loser.name}",
        f"{directory}/manifest/{lost}",
        f"{directory}/partition=0/torn.parquet",
    }
    assert names[f"{directory}/{loser.name}"] == loser.bytes
    # What was taken out by a later version is an orphan, too, once nothing needs it.
    merged = store(world.location, [row(0), row(3), row(5), row(6)], (0, 9))
    manifest = snapshot.commit([merged], [file.name for file in world.files[:2]])
    head = dataclasses.replace(world.head, manifest=write_manifest(world.location, manifest))
    orphans = {entry.name for entry in verify(world.location, head).orphans}
    assert {f"{directory}/{file.name}" for file in world.files[:2]} <= orphans


def test_a_writer_refuses_what_would_not_be_in_order(world: World) -> None:
    writer = FileWriter(TOPIC, TOPIC_ID, 0, 10)
    with pytest.raises(InvalidCommitError, match="not ordered by offset"):
        writer.write(to_table([row(9)]))
    with pytest.raises(InvalidCommitError, match="not ordered by offset"):
        writer.write(to_table([row(12), row(11)]))
    writer.write(to_table([row(12)]))
    with pytest.raises(InvalidCommitError, match="not ordered by offset"):
        writer.write(to_table([row(12)]))
    assert (writer.rows, writer.next_offset) == (1, 13)
    assert writer.bytes > 0
    with pytest.raises(InvalidCommitError, match="cannot end at 12"):
        writer.finish(12)
    with pytest.raises(InvalidCommitError, match="cannot end at 10"):
        FileWriter(TOPIC, TOPIC_ID, 0, 10).finish()


def test_names_say_what_a_file_is_and_none_is_written_twice(world: World) -> None:
    one = write_file(world.location, TOPIC, TOPIC_ID, 7, (0, 2), [to_table([row(0)]), to_table([row(1)])])
    two = write_file(world.location, TOPIC, TOPIC_ID, 7, (0, 2), [to_table([row(0), row(1)]).to_batches()[0]])
    assert one.name != two.name
    assert one.name.startswith("partition=7/00000000000000000000-00000000000000000001-")
    assert is_data_file(one.name)
    assert not is_data_file("partition=7/torn.parquet")
    assert is_manifest(f"manifest/{world.head.manifest}")
    assert not is_manifest(one.name)
    with pytest.raises(FileExistsInArchiveError):
        world.location.write_new(f"{world.head.directory}/{one.name}", b"")
