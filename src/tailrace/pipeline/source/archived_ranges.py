"""The offsets of a query that are read from files of an archive, and their split into tasks.

Pure arithmetic: every offset of the given ranges is in exactly one resulting piece, except offsets in files that cannot
have records of the wanted times. It must not know brokers, locations or Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tailrace.archive.layout import TopicArchive
from tailrace.archive.manifest import ArchivedFile, PartitionFiles
from tailrace.archive.quarantine import SideFile
from tailrace.model import TopicPartition
from tailrace.pipeline.source.ranges import OffsetRange, split_evenly, split_ranges

#: The bytes of files that are worth a task; the same as Spark's default for its own files.
TASK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """What is read of a partition from files: the offsets from start to end (exclusive)."""

    archive: TopicArchive
    start: int
    end: int
    files: PartitionFiles


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Offsets of one partition, and the files that have them all, in order."""

    offsets: OffsetRange
    archive: TopicArchive
    files: tuple[ArchivedFile, ...]
    #: Where undecodable batches are.
    side_files: tuple[SideFile, ...] = ()


#: What one task reads: from the brokers, or from files.
Piece: TypeAlias = OffsetRange | ArchivedRange


def plan_pieces(
    ranges: Sequence[OffsetRange],
    parts: Mapping[TopicPartition, ArchivedPart],
    times_ms: tuple[int, int],
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Piece]:
    """Cut ranges where files begin and end, and split them as the query's options demand."""
    cut = [piece for one in ranges for piece in _cut(one, parts.get(_name(one)), times_ms)]
    pieces: list[Piece] = []
    for one in split_ranges(cut, min_partitions, max_records):
        part = parts.get(_name(one))
        if part is None or not part.start <= one.start < part.end:
            pieces.append(one)
        elif files := _files(part, one, times_ms):
            aside = tuple(
                file for file in part.files.side_files_between(one.start, one.end) if file.may_have(*times_ms)
            )
            pieces.append(ArchivedRange(one, part.archive, files, aside))
    return pieces


def _name(one: OffsetRange) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def _cut(one: OffsetRange, part: ArchivedPart | None, times_ms: tuple[int, int]) -> Iterator[OffsetRange]:
    """Split a range into the part before the files, groups of files, and the part behind them."""
    if part is None or part.end <= one.start or one.end <= part.start:
        yield one
        return
    if one.start < part.start:
        yield replace(one, end=part.start)
    archived = replace(one, start=max(one.start, part.start), end=min(one.end, part.end))
    yield from _grouped(archived, _files(part, archived, times_ms))
    if part.end < one.end:
        yield replace(one, start=part.end)


def _files(part: ArchivedPart, one: OffsetRange, times_ms: tuple[int, int]) -> tuple[ArchivedFile, ...]:
    """Return the files that may have wanted records, also if only their quarantined batches may."""
    aside = [file for file in part.files.side_files_between(one.start, one.end) if file.may_have(*times_ms)]
    return tuple(
        file
        for file in part.files.files_between(one.start, one.end)
        if file.may_have(*times_ms) or any(each.overlaps(file.first_offset, file.next_offset) for each in aside)
    )


def _grouped(one: OffsetRange, files: Sequence[ArchivedFile]) -> Iterator[OffsetRange]:
    """Group the offsets of adjacent files into tasks; a larger file makes several tasks."""
    group: OffsetRange | None = None
    size = 0.0
    for file in files:
        start, end = max(file.first_offset, one.start), min(file.next_offset, one.end)
        # If the query cuts a file, only a part of it is read.
        bytes_here = file.bytes * (end - start) / (file.next_offset - file.first_offset)
        if group is None or size + bytes_here > TASK_BYTES:
            if group is not None:
                yield from split_evenly(group, max(1, round(size / TASK_BYTES)))
            group, size = replace(one, start=start, end=end), 0.0
        group = replace(group, end=end)
        size += bytes_here
    if group is not None:
        yield from split_evenly(group, max(1, round(size / TASK_BYTES)))
