"""The offsets that the next archiving round takes, and how they are split into files.

Pure arithmetic over what is left to archive and the sizes of the archive's last files. Invariants: every piece of a
partition begins where the previous one ends, and a round has a limit in bytes, so that a kill wastes a limited amount
of work. This module must not know brokers, files or Spark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.archive.manifest import ArchivedFile

#: The target size of a file.
FILE_BYTES = 128 << 20
#: Less than this part of a file is not split only to use idle cores.
_LEAST_PART = 1 / 4
#: The number of files per core in a round.
_FILES_PER_CORE = 3
#: Sizes vary between ranges of offsets; a piece ends when its file exceeds its estimate by this factor.
_LEEWAY = 2
#: The assumed size of a record if nothing is known; the real size closes the file.
_ASSUMED_BYTES = 1024
#: A file smaller than this part and with few offsets says nothing about record sizes: its footer dominates.
_TELLING_PART = 1 / 128
_TELLING_OFFSETS = 10_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is left to archive of one partition."""

    topic: str
    partition: int
    #: Where the archive ends; the next file must begin there.
    first_offset: int
    #: Where records begin; later than the first offset if some were deleted before they were archived.
    start: int
    end: int
    #: The approximate bytes of an offset in a file; None if there is nothing to estimate from.
    bytes_per_offset: float | None

    @property
    def estimated_bytes(self) -> float:
        return (self.end - self.start) * (self.bytes_per_offset or _ASSUMED_BYTES)

    def fills_file(self, file_bytes: int = FILE_BYTES) -> bool:
        """True if there is enough for a whole file."""
        return self.estimated_bytes >= file_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """A future file: records from start to end (exclusive), unless it exceeds its maximum size before."""

    topic: str
    partition: int
    first_offset: int
    start: int
    end: int
    max_bytes: int
    estimated_bytes: float


def bytes_per_offset(files: Sequence[ArchivedFile], file_bytes: int = FILE_BYTES) -> float | None:
    """Estimate the bytes of an offset of a partition from its last files."""
    size = offsets = 0
    for file in reversed(files):
        size += file.bytes
        offsets += file.next_offset - file.first_offset
        if offsets >= _TELLING_OFFSETS or size >= file_bytes * _TELLING_PART:
            return size / offsets
    return None


def plan_round(backlogs: Sequence[Backlog], cores: int, file_bytes: int = FILE_BYTES) -> list[Piece]:
    """Return the pieces of the next round, the largest first, so that no core starts a large one when the others are
    done.

    Partitions with little left are added first: none waits because others have much.
    """
    waiting = [backlog for backlog in backlogs if backlog.start < backlog.end]
    total = sum(backlog.estimated_bytes for backlog in waiting)
    piece_bytes = min(float(file_bytes), max(file_bytes * _LEAST_PART, total / max(1, cores)))
    waiting.sort(key=lambda backlog: backlog.estimated_bytes)
    most_bytes = max(1, cores) * _FILES_PER_CORE * file_bytes
    queues = [_split(backlog, piece_bytes, file_bytes, most_bytes) for backlog in waiting]
    chosen: list[Piece] = []
    taken = 0.0
    for turn in range(max(map(len, queues), default=0)):
        for pieces in queues:
            if turn < len(pieces) and (not chosen or taken + pieces[turn].estimated_bytes <= most_bytes):
                chosen.append(pieces[turn])
                taken += pieces[turn].estimated_bytes
            elif turn < len(pieces):
                del pieces[turn:]
    return sorted(chosen, key=lambda piece: -piece.estimated_bytes)


def _split(backlog: Backlog, piece_bytes: float, file_bytes: int, most_bytes: int) -> list[Piece]:
    """Return the first pieces of a partition, as many as a round may have."""
    size = backlog.end - backlog.start
    if backlog.bytes_per_offset is None:
        # Only its end shows how large it is, so nothing can follow it in this round.
        estimated = min(float(file_bytes), backlog.estimated_bytes)
        return [_piece(backlog, backlog.first_offset, backlog.start, backlog.end, file_bytes, estimated)]
    count = max(1, min(size, round(backlog.estimated_bytes / piece_bytes)))
    pieces = []
    first, start = backlog.first_offset, backlog.start
    for number in range(min(count, math.ceil(most_bytes / piece_bytes))):
        end = backlog.start + size * (number + 1) // count
        pieces.append(_piece(backlog, first, start, end, file_bytes * _LEEWAY, backlog.estimated_bytes / count))
        first = start = end
    return pieces


def _piece(backlog: Backlog, first: int, start: int, end: int, max_bytes: int, estimated: float) -> Piece:
    return Piece(backlog.topic, backlog.partition, first, start, end, max_bytes, estimated)


def without_holes(files: Sequence[ArchivedFile], ends: dict[int, int]) -> tuple[list[ArchivedFile], list[ArchivedFile]]:
    """Split files into those that extend their partitions without a hole, and those behind a hole, which do not fit."""
    ends = dict(ends)
    fitting: list[ArchivedFile] = []
    stray: list[ArchivedFile] = []
    for file in sorted(files, key=lambda each: (each.partition, each.first_offset)):
        if ends.get(file.partition, file.first_offset) == file.first_offset:
            fitting.append(file)
            ends[file.partition] = file.next_offset
        else:
            stray.append(file)
    return fitting, stray
