"""Manifests: chains of commits against a simple model, look-ups, and all that is refused or found to be damaged."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive.errors import ArchiveCorruptError, FileMissingError, InvalidCommitError, NewerFormatError
from tailrace.archive.layout import TopicArchive, data_file_name, manifest_path
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import (
    CHECKPOINT_INTERVAL,
    ArchivedFile,
    Snapshot,
    decode_manifest,
    load_snapshot,
    read_manifest,
    write_manifest,
)
from tests.unit.archive.rows import TOPIC, TOPIC_ID
from tests.unit.records.strategies import quick


def file(partition: int, first: int, end: int, max_timestamp: int | None = 1000) -> ArchivedFile:
    """What a manifest says of a file that nobody reads here."""
    rows = 0 if max_timestamp is None else end - first
    return ArchivedFile(
        name=data_file_name(partition, first, end),
        partition=partition,
        first_offset=first,
        next_offset=end,
        rows=rows,
        bytes=100,
        checksum="crc32c:00000000",
        footer_bytes=50,
        footer_checksum="crc32c:00000000",
        min_timestamp=None if max_timestamp is None else 0,
        max_timestamp=max_timestamp,
    )


def empty() -> Snapshot:
    return Snapshot(TOPIC, TOPIC_ID)


def committed(snapshot: Snapshot, *added: ArchivedFile, **changes: object) -> Snapshot:
    """What a snapshot becomes by a commit, without writing it."""
    manifest = snapshot.commit(added, **changes)
    return snapshot.following(manifest, f"{manifest.version}")


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return open_location(str(tmp_path))


def archive_of(location: Location, head: str | None) -> TopicArchive:
    return TopicArchive(location.uri, TOPIC, TOPIC_ID, head)


class Model:
    """What an archive has to be after some commits: for each partition a start, and files as they follow each other."""

    def __init__(self) -> None:
        self.files: dict[int, list[ArchivedFile]] = {}
        self.starts: dict[int, int] = {}

    def end(self, partition: int) -> int:
        files = self.files[partition]
        return files[-1].next_offset if files else self.starts[partition]

    def append(self, partition: int, length: int, gap: int) -> tuple[list[ArchivedFile], list[str], dict[int, int]]:
        first = self.end(partition) if partition in self.files else gap
        added = file(partition, first, first + length)
        self.files.setdefault(partition, []).append(added)
        self.starts.setdefault(partition, first)
        return [added], [], {}

    def compact(self, partition: int, at: int, count: int) -> tuple[list[ArchivedFile], list[str], dict[int, int]]:
        files = self.files[partition]
        at %= len(files)
        old = files[at : at + count]
        new = file(partition, old[0].first_offset, old[-1].next_offset)
        files[at : at + count] = [new]
        return [new], [each.name for each in old], {}

    def expire(self, partition: int, by: int) -> tuple[list[ArchivedFile], list[str], dict[int, int]]:
        end = self.end(partition)
        start = self.starts[partition] = min(end, self.starts[partition] + by)
        gone = [each for each in self.files[partition] if each.next_offset <= start]
        self.files[partition] = self.files[partition][len(gone) :]
        return [], [each.name for each in gone], {partition: start}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("append", "append", "compact", "expire")),
        st.integers(0, 2),
        st.integers(1, 30),
        st.integers(1, 4),
    ),
    max_size=12,
)


@quick
@given(steps=STEPS, probes=st.lists(st.integers(0, 100), max_size=5))
def test_a_chain_of_commits_is_what_the_model_says_however_it_is_loaded(
    steps: list[tuple[str, int, int, int]], probes: list[int]
) -> None:
    model = Model()
    snapshot = empty()
    with tempfile.TemporaryDirectory() as directory:
        location = open_location(directory)
        for kind, partition, number, count in steps:
            if kind == "append" or partition not in model.files:
                change = model.append(partition, number, count)
            elif kind == "compact" and model.files[partition]:
                change = model.compact(partition, number, count)
            else:
                change = model.expire(partition, number)
            known = {snapshot.head: snapshot}
            head = write_manifest(location, snapshot.commit(*change))
            loaded = load_snapshot(location, archive_of(location, head))
            assert load_snapshot(location, archive_of(location, head), known.get) == loaded
            snapshot = loaded
            assert snapshot.coverage == {
                partition: (model.starts[partition], model.end(partition)) for partition in sorted(model.files)
            }
            assert snapshot.files == tuple(each for _, files in sorted(model.files.items()) for each in files)
    for partition, files in model.files.items():
        found = snapshot.partition(partition)
        for probe in probes:
            holders = [
                index
                for index, each in enumerate(files)
                if each.first_offset <= probe < each.next_offset and probe >= model.starts[partition]
            ]
            assert found.index_at(probe) == (holders[0] if holders else None)
            low = max(probe, model.starts[partition])
            assert list(found.files_between(probe, probe + 20)) == [
                each for each in files if each.first_offset < probe + 20 and each.next_offset > low and low < probe + 20
            ]


def test_opening_reads_no_further_back_than_the_last_checkpoint(location: Location) -> None:
    snapshot = empty()
    heads: list[str] = []
    for number in range(CHECKPOINT_INTERVAL + 3):
        heads.append(write_manifest(location, snapshot.commit([file(number % 2, number // 2, number // 2 + 1)])))
        snapshot = load_snapshot(location, archive_of(location, heads[-1]), {snapshot.head: snapshot}.get)
    for head in heads[: CHECKPOINT_INTERVAL - 1]:
        location.delete(manifest_path(snapshot.directory, head))
    loaded = load_snapshot(location, archive_of(location, heads[-1]))
    assert loaded == snapshot
    assert loaded.version == CHECKPOINT_INTERVAL + 3
    with pytest.raises(FileMissingError):
        load_snapshot(location, archive_of(location, heads[CHECKPOINT_INTERVAL - 2]))


def test_nothing_is_archived_before_the_first_commit(location: Location) -> None:
    snapshot = load_snapshot(location, archive_of(location, None))
    assert snapshot == empty()
    assert snapshot.coverage == {}
    assert snapshot.partition(4).index_at(0) is None


def test_files_are_found_by_time_in_order_of_offsets() -> None:
    files = [file(0, 0, 5, 100), file(0, 5, 7, None), file(0, 7, 9, 50), file(0, 9, 10, 300)]
    partition = committed(empty(), *files).partition(0)
    assert list(partition.files_since(60)) == [files[0], files[3]]
    assert list(partition.files_since(301)) == []
    assert partition.max_timestamp == 300


@pytest.mark.parametrize(
    ("added", "removed", "starts", "why"),
    [
        ([file(0, 12, 15)], [], {}, "leaves a gap from 10 on"),
        ([file(0, 8, 15)], [], {}, "overlaps"),
        ([file(0, 10, 10)], [], {}, "has an empty range of offsets"),
        ([file(0, 10, 12), file(0, 10, 12)], [], {}, "overlaps"),
        ([], ["partition=0/nobody.parquet"], {}, "not part of the archive"),
        ([], ["first"], {}, "cover offsets"),
        ([], ["second"], {}, "would cover"),
        ([], [], {0: 1}, "would cover"),
        ([], [], {0: 11}, "would cover"),
        ([], [], {1: 0}, "partition 1 is not part"),
        ([file(0, 15, 20)], ["first", "second"], {0: 15}, "would cover"),
    ],
)
def test_a_commit_that_would_leave_a_hole_or_lose_something_is_refused(
    added: list[ArchivedFile], removed: list[str], starts: dict[int, int], why: str
) -> None:
    first, second = file(0, 2, 5), file(0, 5, 10)
    snapshot = committed(empty(), first, second)
    names = {"first": first.name, "second": second.name}
    with pytest.raises(InvalidCommitError, match=why):
        snapshot.commit(added, [names.get(name, name) for name in removed], starts)


def test_a_start_may_be_within_a_file_and_a_partition_may_become_empty_and_go_on() -> None:
    one, two = file(0, 0, 10), file(0, 10, 20)
    snapshot = committed(empty(), one, two)
    snapshot = committed(snapshot, starts={0: 13}, removed=[one.name])
    assert (snapshot.coverage, snapshot.files) == ({0: (13, 20)}, (two,))
    snapshot = committed(snapshot, starts={0: 20}, removed=[two.name])
    assert (snapshot.coverage, snapshot.files) == ({0: (20, 20)}, ())
    assert committed(snapshot, file(0, 20, 25)).coverage == {0: (20, 25)}
    with pytest.raises(InvalidCommitError):
        snapshot.commit([file(0, 21, 25)])


def rewritten(location: Location, head: str, **changes: object) -> str:
    """Store a manifest with other fields under a name that vouches for it, as a writer with a bug would."""
    path = manifest_path(empty().directory, head)
    document = {**json.loads(location.read_all(path)), **changes}
    content = json.dumps(document).encode()
    name = f"{head[:20]}-00-{crc32c(content):08x}.json"
    location.write_new(manifest_path(empty().directory, name), content)
    return name


def test_a_manifest_of_a_newer_format_is_told_apart_from_a_damaged_one(location: Location) -> None:
    head = write_manifest(location, empty().commit([file(0, 0, 5)]))
    newer = rewritten(location, head, format=3)
    with pytest.raises(NewerFormatError, match="has format 3"):
        load_snapshot(location, archive_of(location, newer))
    # What a later version adds without another format is passed over.
    assert load_snapshot(location, archive_of(location, rewritten(location, head, novelty=1))).version == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"format": "1"},
        {"partitions": {"0": [0, 6]}},
        {"partitions": {"0": [0, 5], "1": [0, 5]}},
        {"partitions": {}},
        {"topic": "other"},
        {"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"},
        {"added": [{"name": "x"}]},
        {"removed": ["partition=0/x.parquet"]},
        {"parent": "00000000000000000000-00-00000000.json"},
        {"files": []},
        {"added": 3},
    ],
)
def test_a_manifest_that_does_not_hold_together_is_corrupt(location: Location, changes: dict[str, object]) -> None:
    head = rewritten(location, write_manifest(location, empty().commit([file(0, 0, 5)])), **changes)
    with pytest.raises((ArchiveCorruptError, FileMissingError)):
        load_snapshot(location, archive_of(location, head))


def test_a_file_name_that_leads_out_of_the_archive_is_refused(location: Location) -> None:
    head = write_manifest(location, empty().commit([file(0, 0, 5)]))
    entry = json.loads(location.read_all(manifest_path(empty().directory, head)))["added"][0]
    head = rewritten(location, head, added=[{**entry, "name": "../../../secret.parquet"}])
    with pytest.raises(ArchiveCorruptError, match="not the name of a data file"):
        load_snapshot(location, archive_of(location, head))


def test_every_altered_or_missing_byte_of_a_manifest_is_noticed() -> None:
    content = empty().commit([file(0, 0, 5)]).encode()
    name = f"{1:020d}-00-{crc32c(content):08x}.json"
    assert decode_manifest(name, content).version == 1
    for at in range(len(content)):
        altered = bytearray(content)
        altered[at] ^= 0x01
        with pytest.raises(ArchiveCorruptError, match="altered or truncated"):
            decode_manifest(name, bytes(altered))
        with pytest.raises(ArchiveCorruptError, match="altered or truncated"):
            decode_manifest(name, content[:at])
    with pytest.raises(ArchiveCorruptError, match="not the name of a manifest"):
        decode_manifest("head.json", content)


def test_a_parent_of_another_version_or_topic_is_corrupt(location: Location) -> None:
    first = write_manifest(location, empty().commit([file(0, 0, 5)]))
    snapshot = load_snapshot(location, archive_of(location, first))
    second = write_manifest(location, snapshot.commit([file(0, 5, 7)]))
    skipping = rewritten(location, second, parent=second)
    with pytest.raises(ArchiveCorruptError, match="is the parent of a manifest that does not follow it"):
        load_snapshot(location, archive_of(location, skipping))
    other = TopicArchive(location.uri, TOPIC, UUID(int=7), first)
    with pytest.raises(FileMissingError):
        load_snapshot(location, other)


def test_two_commits_of_the_same_version_have_different_names_and_both_stay_readable(location: Location) -> None:
    manifest = empty().commit([file(0, 0, 5)])
    mine, theirs = write_manifest(location, manifest), write_manifest(location, manifest)
    assert mine != theirs
    assert read_manifest(location, empty().directory, mine) == read_manifest(location, empty().directory, theirs)
