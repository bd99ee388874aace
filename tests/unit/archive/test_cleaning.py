"""Cleaning: files are deleted only once nobody can need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.archive import manifest as manifests
from tailrace.archive.cleaning import Leftovers, delete_leftovers, find_leftovers
from tailrace.archive.errors import NewerFormatError
from tailrace.archive.layout import TopicArchive, manifest_path
from tailrace.archive.location import Entry, open_location
from tailrace.archive.manifest import ArchivedFile, Snapshot, load_snapshot, write_manifest
from tailrace.archive.verify import verify
from tests.unit.archive.rows import TOPIC, TOPIC_ID, row, store
from tests.unit.archive.test_manifest import rewritten

GRACE_MS = 1000
#: When everything is written, unless a test says otherwise.
THEN_MS = 1_700_000_000_000


class World:
    """An archive that grows by commits, each at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = open_location(str(root))
        self.archive = TopicArchive(str(root), TOPIC, TOPIC_ID, None)

    @property
    def snapshot(self) -> Snapshot:
        return load_snapshot(self.location, self.archive)

    def store(self, first: int, end: int, at_ms: int = THEN_MS) -> ArchivedFile:
        file = store(self.location, [row(each) for each in range(first, end)], (first, end))
        self.set_time(f"{self.archive.directory}/{file.name}", at_ms)
        return file

    def write_manifest(
        self, added: list[ArchivedFile], removed: list[ArchivedFile], at_ms: int, starts: dict[int, int] | None = None
    ) -> str:
        manifest = self.snapshot.commit(added, [file.name for file in removed], starts)
        name = write_manifest(self.location, manifest)
        self.set_time(manifest_path(self.archive.directory, name), at_ms)
        return name

    def commit(
        self,
        added: list[ArchivedFile],
        removed: list[ArchivedFile] | None = None,
        at_ms: int = THEN_MS,
        starts: dict[int, int] | None = None,
    ) -> None:
        name = self.write_manifest(added, removed or [], at_ms, starts)
        self.archive = TopicArchive(str(self.root), TOPIC, TOPIC_ID, name)

    def set_time(self, name: str, at_ms: int) -> None:
        os.utime(self.root / name, ns=(at_ms * 1_000_000, at_ms * 1_000_000))

    def leftovers(self, now_ms: int) -> Leftovers:
        return find_leftovers(self.location, self.archive, self.snapshot, now_ms=now_ms, grace_ms=GRACE_MS)

    def names(self, entries: tuple[Entry, ...]) -> set[str]:
        return {entry.name.removeprefix(f"{self.archive.directory}/") for entry in entries}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_file_that_was_taken_out_goes_a_grace_period_later(world: World) -> None:
    old = [world.store(0, 5), world.store(5, 9)]
    world.commit(old)
    merged = world.store(0, 9)
    removed_ms = THEN_MS + 50_000
    world.commit([merged], old, removed_ms)
    early = world.leftovers(removed_ms + GRACE_MS - 1)
    assert (early.deletable, world.names(early.waiting)) == ((), {file.name for file in old})
    late = world.leftovers(removed_ms + GRACE_MS)
    assert (world.names(late.deletable), late.waiting) == ({file.name for file in old}, ())
    assert late.deletable_bytes == sum(file.bytes for file in old)
    deleted: list[Entry] = []
    delete_leftovers(world.location, late, deleted.append)
    assert tuple(deleted) == late.deletable
    assert world.leftovers(removed_ms + 10 * GRACE_MS) == Leftovers((), ())
    report = verify(world.location, world.archive)
    assert (report.is_sound, report.files, report.orphans) == (True, 1, [])


def test_a_file_of_nobody_goes_only_once_the_archive_is_beyond_its_first_offset(world: World) -> None:
    world.commit([world.store(0, 10)])
    # Of an archiver that was killed, or one that is slow; of one that has lost against another; of a compaction.
    ahead, lost, merging = world.store(10, 20), world.store(9, 15), world.store(0, 10)
    now_ms = THEN_MS + 1_000_000_000
    assert world.names(world.leftovers(now_ms).deletable) == {lost.name, merging.name}
    world.commit([world.store(10, 11)], at_ms=now_ms)
    assert world.names(world.leftovers(now_ms).deletable) == {ahead.name, lost.name, merging.name}
    assert world.leftovers(THEN_MS + GRACE_MS - 1).deletable == ()


def test_what_a_manifest_beyond_the_known_head_names_is_not_touched(world: World) -> None:
    first = world.store(0, 5), world.store(5, 9)
    world.commit(list(first))
    known = world.archive
    merged = world.store(0, 9)
    world.commit([merged], list(first))
    newest, world.archive = world.archive, known
    now_ms = THEN_MS + 1_000_000_000
    assert world.leftovers(now_ms) == Leftovers((), ())
    world.archive = newest
    assert world.names(world.leftovers(now_ms).deletable) == {file.name for file in first}
    # One that cannot be understood could name anything.
    world.archive = known
    assert newest.manifest is not None
    rewritten(world.location, newest.manifest, format=99)
    with pytest.raises(NewerFormatError) as raised:
        world.leftovers(now_ms)
    assert raised.value.__notes__ == ["nothing was deleted, because files that this manifest names may be needed"]


def test_manifests_that_were_not_taken_and_unfinished_files_go_and_what_is_not_ours_stays(world: World) -> None:
    lost = world.write_manifest([world.store(0, 3)], [], THEN_MS)
    unfinished = world.root / world.archive.directory / "partition=0" / ".unfinished-12-x.parquet"
    foreign = world.root / world.archive.directory / "notes.txt"
    world.commit([world.store(0, 5)])
    for path in (unfinished, foreign):
        path.write_bytes(b"x")
        world.set_time(str(path.relative_to(world.root)), THEN_MS)
    found = world.names(world.leftovers(THEN_MS + GRACE_MS).deletable)
    assert {f"manifest/{lost}", "partition=0/.unfinished-12-x.parquet"} < found
    assert len(found) == 3
    assert world.names(world.leftovers(THEN_MS).waiting) == found


def test_history_before_the_checkpoint_that_a_reader_may_need_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "CHECKPOINT_INTERVAL", 4)
    heads = []
    for number in range(11):
        world.commit([world.store(number, number + 1)], at_ms=THEN_MS + number * 100)
        heads.append(world.archive.manifest)
    # Versions 4 and 8 are checkpoints. A reader can load any head that is within the grace period.
    assert world.leftovers(THEN_MS + 300).deletable == ()
    assert world.names(world.leftovers(THEN_MS + 700 + GRACE_MS - 1).deletable) == {
        f"manifest/{head}" for head in heads[:3]
    }
    late = world.leftovers(THEN_MS + 700 + GRACE_MS)
    assert world.names(late.deletable) == {f"manifest/{head}" for head in heads[:7]}
    delete_leftovers(world.location, late)
    assert world.snapshot.coverage == {0: (0, 11)}
    assert load_snapshot(world.location, TopicArchive(str(world.root), TOPIC, TOPIC_ID, heads[7])).version == 8
    assert verify(world.location, world.archive).is_sound
    assert world.leftovers(THEN_MS + 700 + GRACE_MS).deletable == ()


def test_an_expired_file_waits_as_well(world: World) -> None:
    old, kept = world.store(0, 5), world.store(5, 9)
    world.commit([old, kept])
    world.commit([], [old], THEN_MS + 5000, {0: 5})
    assert world.names(world.leftovers(THEN_MS + 5000 + GRACE_MS - 1).waiting) == {old.name}
    assert world.names(world.leftovers(THEN_MS + 5000 + GRACE_MS).deletable) == {old.name}
