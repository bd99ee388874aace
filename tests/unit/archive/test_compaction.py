"""Compaction: which files become one, what is expired, and that a merged file has all that the others had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.archive.compaction import (
    Expiry,
    Merge,
    commit_of,
    plan_expiry,
    plan_merges,
    still_possible,
    write_merged,
)
from tailrace.archive.errors import ArchiveCorruptError
from tailrace.archive.layout import TopicArchive
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, PartitionFiles, Snapshot, load_snapshot, write_manifest
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.archive.scan import Wanted, scan_files
from tailrace.archive.verify import verify
from tests.unit.archive.rows import TOPIC, TOPIC_ID, commit, row, store

NOTHING = Expiry({}, ())


def file(first: int, end: int, size: int, partition: int = 0, max_timestamp: int | None = 0) -> ArchivedFile:
    rows = 0 if max_timestamp is None else end - first
    return ArchivedFile(f"{partition}/{first}", partition, first, end, rows, size, "", 0, "", 0, max_timestamp)


def snapshot_of(*partitions: Sequence[ArchivedFile], start: int = 0) -> Snapshot:
    return Snapshot(
        TOPIC,
        TOPIC_ID,
        7,
        "head",
        {
            number: PartitionFiles.of(max(start, files[0].first_offset), files[-1].next_offset, files)
            for number, files in enumerate(partitions)
        },
    )


def sized(*sizes: int, partition: int = 0) -> list[ArchivedFile]:
    return [file(number * 10, number * 10 + 10, size, partition) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ((10, 10, 10, 10), [[0, 1, 2, 3]]),
        # Not above what a file should be.
        ((40, 40, 40, 40), [[0, 1], [2, 3]]),
        # A file of half that size or more is large, and what is on its two sides does not touch.
        ((10, 10, 50, 10, 10), [[0, 1], [3, 4]]),
        ((10, 99, 10), []),
        ((200, 10, 10, 10), [[1, 2, 3]]),
        ((10,), []),
    ],
)
def test_small_files_that_touch_become_one(sizes: tuple[int, ...], runs: list[list[int]]) -> None:
    files = sized(*sizes)
    merges = plan_merges(snapshot_of(files), NOTHING, target_bytes=100, min_files=2)
    assert [list(merge.files) for merge in merges] == [[files[number] for number in run] for run in runs]
    assert [merge.bytes for merge in merges] == [sum(sizes[number] for number in run) for run in runs]


def test_records_without_a_time_expire_only_with_later_ones() -> None:
    timeless = [file(0, 10, 1, max_timestamp=-1), file(10, 20, 1, max_timestamp=-1)]
    assert plan_expiry(snapshot_of(timeless), {}, 100, 1_000_000) == NOTHING
    old = file(20, 30, 1, max_timestamp=500)
    young = [file(30, 40, 1, max_timestamp=999_990), file(40, 50, 1, max_timestamp=-1)]
    found = plan_expiry(snapshot_of([*timeless, old, *young]), {}, 100, 1_000_000)
    assert (found.starts, found.files) == ({0: 30}, (*timeless, old))


def test_few_files_expired_ones_and_those_of_different_partitions_are_not_merged() -> None:
    snapshot = snapshot_of(sized(1, 1, 1), sized(1, 1, 1, 1, partition=1))
    assert [merge.partition for merge in plan_merges(snapshot, NOTHING, target_bytes=100, min_files=4)] == [1]
    expired = Expiry({1: 20}, snapshot.partition(1).files[:2])
    (first, second) = plan_merges(snapshot, expired, target_bytes=100, min_files=2)
    assert (first.partition, second.files) == (0, snapshot.partition(1).files[2:])


def test_what_is_older_than_retention_goes_a_file_at_a_time_from_the_start_on() -> None:
    files = [
        file(0, 10, 1, max_timestamp=None),
        file(10, 20, 1, max_timestamp=100),
        file(20, 30, 1, max_timestamp=None),
        file(30, 40, 1, max_timestamp=300),
        file(40, 50, 1, max_timestamp=100),
    ]
    snapshot = snapshot_of(files)

    def expired(retention_ms: int, now_ms: int = 1000, **deleted: int) -> tuple[dict[int, int], int]:
        found = plan_expiry(snapshot, {0: deleted.get("below", 0)}, retention_ms, now_ms)
        return dict(found.starts), len(found.files)

    assert expired(-1) == ({}, 0)
    assert expired(900) == ({}, 0)
    assert expired(899) == ({0: 20}, 2)
    # A younger file keeps an older one that is behind it: there are no holes.
    assert expired(700) == ({0: 20}, 2)
    assert expired(699) == ({0: 50}, 5)
    assert expired(0, now_ms=0) == ({}, 0)
    # What users deleted goes too; a file of which they deleted a part stays, below the start.
    assert expired(-1, below=35) == ({0: 35}, 3)
    assert expired(899, below=5) == ({0: 20}, 2)
    assert expired(-1, below=9999) == ({0: 50}, 5)
    assert not plan_expiry(snapshot, {}, -1, 1000)


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return open_location(str(tmp_path))


def records(location: Location, snapshot: Snapshot) -> pa.Table:
    files = snapshot.partition(0)
    wanted = Wanted(files.start, files.end, tuple(RECORD_SCHEMA.names))
    return pa.concat_tables(rows.table for rows in scan_files(location, snapshot.directory, files.files, wanted))


def test_a_merged_file_takes_the_place_of_its_files_also_when_others_were_added_meanwhile(location: Location) -> None:
    spans = ((0, 5), (5, 8), (8, 20))
    files = [store(location, [row(each) for each in range(*span, 2)], span) for span in spans]
    before = load_snapshot(location, commit(location, files))
    old = records(location, before)
    merge = Merge(tuple(files))
    merged = write_merged(location, before, merge)
    assert (merged.first_offset, merged.next_offset, merged.rows) == (0, 20, sum(each.rows for each in files))
    assert (merged.min_timestamp, merged.max_timestamp) == (files[0].min_timestamp, files[-1].max_timestamp)

    added = store(location, [row(20)], (20, 25))
    name = write_manifest(location, before.commit([added]))
    archive = TopicArchive(location.uri, TOPIC, TOPIC_ID, name)
    after = load_snapshot(location, archive)
    assert still_possible(after, merge)
    manifest = commit_of(after, [(merge, merged)], plan_expiry(after, {0: 2}, -1, 0))
    head = TopicArchive(location.uri, TOPIC, TOPIC_ID, write_manifest(location, manifest))
    compacted = load_snapshot(location, head)
    assert compacted.partition(0) == PartitionFiles.of(2, 25, [merged, added])
    assert verify(location, head, {0: (2, 25)}).is_sound
    assert records(location, compacted).slice(0, old.num_rows - 1).equals(old.slice(1))
    assert not still_possible(compacted, merge)


def test_files_that_do_not_have_what_their_manifest_says_are_not_merged(location: Location) -> None:
    files = [store(location, [row(0)], (0, 5)), store(location, [row(5)], (5, 8))]
    wrong = ArchivedFile(**{**{name: getattr(files[1], name) for name in ArchivedFile.__slots__}, "rows": 2})
    with pytest.raises(ArchiveCorruptError, match="have 2 records, but their manifest lists 3: nothing was changed"):
        write_merged(location, load_snapshot(location, commit(location, files)), Merge((files[0], wrong)))
