"""Compaction of an archive: merges small files, and moves the start of the archive past expired records.

Makes the plan, which is pure, and writes one file in place of several. The new file must have every record of the files
that it replaces, otherwise it is an error. This module knows neither brokers nor Spark: distributing and committing the
work is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.archive.errors import ArchiveCorruptError
from tailrace.archive.location import Location
from tailrace.archive.manifest import ArchivedFile, Manifest, PartitionFiles, Snapshot
from tailrace.archive.parquet import FILE_BYTES, RECORD_SCHEMA, FileWriter
from tailrace.archive.quarantine import SideFile
from tailrace.archive.scan import Wanted, scan_files

DEFAULT_MIN_FILES = 4
DEFAULT_TARGET_BYTES = FILE_BYTES


@dataclass(frozen=True, slots=True)
class Merge:
    """Adjacent files of one partition that are merged into one."""

    files: tuple[ArchivedFile, ...]

    @property
    def partition(self) -> int:
        return self.files[0].partition

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What has expired: the new start of each partition, and the files that lie wholly below it."""

    starts: Mapping[int, int]
    files: tuple[ArchivedFile, ...]
    side_files: tuple[SideFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.starts)


def plan_expiry(snapshot: Snapshot, deleted_below: Mapping[int, int], retention_ms: int, now_ms: int) -> Expiry:
    """What can be removed: records below what users deleted, and leading files that are wholly older than retention.

    A negative retention keeps everything for ever.
    """
    starts: dict[int, int] = {}
    gone: list[ArchivedFile] = []
    aside: list[SideFile] = []
    for number, partition in sorted(snapshot.partitions.items()):
        start = max(partition.start, min(deleted_below.get(number, 0), partition.end))
        if retention_ms >= 0:
            start = max(start, _first_kept(partition, now_ms - retention_ms))
        if start > partition.start:
            starts[number] = start
        gone += [file for file in partition.files if file.next_offset <= start]
        aside += [file for file in partition.side_files if file.next_offset <= start]
    return Expiry(starts, tuple(gone), tuple(aside))


def _first_kept(partition: PartitionFiles, oldest_ms: int) -> int:
    """The end of the last leading file that, like all files before it, is older than a time."""
    start = partition.start
    for file in partition.files:
        if file.max_timestamp is not None and file.max_timestamp >= oldest_ms:
            break
        # A file without records, or with records without a time (-1), has no age: it is removed together with the files
        # before it, once a later file is removed.
        if file.max_timestamp is not None and file.max_timestamp >= 0:
            start = file.next_offset
    return max(start, partition.start)


def plan_merges(
    snapshot: Snapshot,
    expiry: Expiry,
    *,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    min_files: int = DEFAULT_MIN_FILES,
) -> list[Merge]:
    """Runs of small adjacent files, each run in total about as large as a file should be.

    Small means less than half of that: a larger file is not rewritten for the sake of a few more records.
    """
    gone = {file.name for file in expiry.files}
    merges: list[Merge] = []
    for _, partition in sorted(snapshot.partitions.items()):
        run: list[ArchivedFile] = []
        run_bytes = 0
        for file in partition.files:
            if file.name in gone:
                continue
            is_small = file.bytes < target_bytes // 2
            if run and (not is_small or run_bytes + file.bytes > target_bytes):
                merges += _merge_of(run, min_files)
                run, run_bytes = [], 0
            if is_small:
                run.append(file)
                run_bytes += file.bytes
        merges += _merge_of(run, min_files)
    return merges


def _merge_of(run: Sequence[ArchivedFile], min_files: int) -> list[Merge]:
    return [Merge(tuple(run))] if len(run) >= max(2, min_files) else []


def write_merged(location: Location, snapshot: Snapshot, merge: Merge) -> ArchivedFile:
    """Store one file with all records of a merge; the archive itself is unchanged until the commit."""
    first, last = merge.files[0], merge.files[-1]
    writer = FileWriter(snapshot.topic, snapshot.lineage, merge.partition, first.first_offset)
    wanted = Wanted(first.first_offset, last.next_offset, tuple(RECORD_SCHEMA.names))
    for rows in scan_files(location, snapshot.directory, merge.files, wanted):
        writer.write(rows.table)
    promised = sum(file.rows for file in merge.files)
    if writer.rows != promised:
        raise ArchiveCorruptError(
            f"{first.name} and the {len(merge.files) - 1} files after it have {writer.rows} records, but their "
            f"manifest lists {promised}: nothing was changed; see `tailrace archive verify {snapshot.topic}`"
        )
    return writer.store(location, last.next_offset)


def still_possible(snapshot: Snapshot, merge: Merge) -> bool:
    """Whether every file of a merge is still part of the archive; appended files do not matter."""
    names = {file.name for file in snapshot.partition(merge.partition).files}
    return names.issuperset(merge.names)


def commit_of(snapshot: Snapshot, merged: Sequence[tuple[Merge, ArchivedFile]], expiry: Expiry) -> Manifest:
    """The manifest that replaces files with merged ones, and removes what has expired."""
    removed = dict.fromkeys(name for merge, _ in merged for name in merge.names)
    removed.update(dict.fromkeys(file.name for file in expiry.files))
    removed.update(dict.fromkeys(file.name for file in expiry.side_files))
    return snapshot.commit([file for _, file in merged], tuple(removed), expiry.starts)
