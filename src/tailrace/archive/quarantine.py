"""Undecodable batches of a topic, kept beside the data files: their raw bytes, one after another.

A side file belongs to the data file whose range of offsets it lies in. Each data file has at most one, so that a client
that produces nothing else does not make manifests grow with every batch. A batch that crosses the end of a data file is
in the side files of both neighbours, and is counted where it begins. Batches are never changed, so a reader gets what
the log had. This module does not know why a batch could not be decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tailrace.archive.errors import ArchiveCorruptError
from tailrace.archive.layout import checksum, side_file_name, topic_directory
from tailrace.archive.location import Location
from tailrace.model import Lineage
from tailrace.records.batch import BatchHeader, has_valid_crc, iterate_batches
from tailrace.runtime.disk import Buffer

#: Maximum size of a side file, unless a single batch is larger; readers hold a whole side file in memory.
SIDE_FILE_BYTES = 16 << 20
_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file of quarantined batches, with everything that is known without reading it."""

    #: Relative to the topic's directory.
    name: str
    partition: int
    #: The range of offsets (end exclusive), within one data file.
    first_offset: int
    next_offset: int
    #: The batches that begin in the file, and how many records their headers claim.
    batches: int
    records: int
    bytes: int
    checksum: str
    #: The times in the headers; records may have others.
    min_timestamp: int
    max_timestamp: int
    #: Why the first batch could not be decoded.
    reason: str

    def may_have(self, first_ms: int, last_ms: int) -> bool:
        """Whether a batch claims a time within a range (inclusive)."""
        return self.min_timestamp <= last_ms and self.max_timestamp >= first_ms

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a batch may have an offset from `start` up to `end` (exclusive)."""
        return self.first_offset < end and self.next_offset > start


class QuarantinedBatch(NamedTuple):
    """One batch as the log had it."""

    header: BatchHeader
    data: bytes


class SideFileWriter:
    """Writes a side file, for the data file that begins at an offset."""

    def __init__(self, topic: str, lineage: Lineage, partition: int, first_offset: int) -> None:
        self._directory = topic_directory(topic, lineage)
        self._partition = partition
        self._first_offset = first_offset
        self._pieces: list[bytes] = []
        self._headers: list[BatchHeader] = []
        self._reason = ""
        self.bytes = 0

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, or the file's first offset while there is none."""
        return self._headers[-1].next_offset if self._headers else self._first_offset

    def has_room_for(self, size: int) -> bool:
        """Whether another batch fits; the first always does."""
        return not self._headers or self.bytes + size <= SIDE_FILE_BYTES

    def add(self, header: BatchHeader, data: Buffer, reason: str) -> None:
        """Add a batch; batches must be in order of offsets."""
        self._headers.append(header)
        self._pieces.append(bytes(data))
        self.bytes += len(self._pieces[-1])
        self._reason = self._reason or reason[:_REASON_CHARACTERS]

    def store(self, location: Location, next_offset: int) -> SideFile | None:
        """Store the batches, for a data file that ends at an offset; None if there are none."""
        if not self._headers:
            return None
        content = b"".join(self._pieces)
        first = max(self._first_offset, self._headers[0].base_offset)
        end = min(next_offset, self._headers[-1].next_offset)
        own = [header for header in self._headers if header.base_offset >= self._first_offset]
        file = SideFile(
            name=side_file_name(self._partition, first, end),
            partition=self._partition,
            first_offset=first,
            next_offset=end,
            batches=len(own),
            records=sum(header.record_count for header in own),
            bytes=len(content),
            checksum=checksum(content),
            min_timestamp=min(min(header.base_timestamp, header.max_timestamp) for header in self._headers),
            max_timestamp=max(max(header.base_timestamp, header.max_timestamp) for header in self._headers),
            reason=self._reason,
        )
        location.write_new(f"{self._directory}/{file.name}", content)
        return file


class SideFileContent:
    """The batches of a side file, found by offset."""

    def __init__(self, file: SideFile, content: bytes) -> None:
        self._content = content
        self._batches = list(iterate_batches(content))
        self._ends = [header.next_offset for _, header in self._batches]
        self.bytes = len(content)
        end = self._batches[-1][0] + self._batches[-1][1].size if self._batches else 0
        if end != len(content):
            raise ArchiveCorruptError(f"{file.name} does not consist of whole batches")

    def __iter__(self) -> Iterator[QuarantinedBatch]:
        return (self._batch(index) for index in range(len(self._batches)))

    def first_after(self, offset: int) -> QuarantinedBatch | None:
        """The first batch with an offset at or after this one; None if there is none."""
        index = bisect_right(self._ends, offset)
        return self._batch(index) if index < len(self._ends) else None

    def between(self, start: int, end: int) -> list[BatchHeader]:
        """The headers of batches with an offset from `start` up to `end` (exclusive)."""
        return [header for _, header in self._batches if header.base_offset < end and header.next_offset > start]

    def _batch(self, index: int) -> QuarantinedBatch:
        position, header = self._batches[index]
        return QuarantinedBatch(header, self._content[position : position + header.size])


def read_side_file(location: Location, directory: str, file: SideFile) -> SideFileContent:
    """Read a side file; ArchiveCorruptError if it is not what was written."""
    content = location.read_all(f"{directory}/{file.name}")
    if len(content) != file.bytes or checksum(content) != file.checksum:
        raise ArchiveCorruptError(
            f"{file.name} was altered or truncated: it has {len(content)} bytes and checksum {checksum(content)}, but "
            f"was written with {file.bytes} bytes and checksum {file.checksum}"
        )
    return SideFileContent(file, content)


def wrong_batches(file: SideFile, content: SideFileContent) -> Iterator[str]:
    """Differences between an intact side file and its manifest entry."""
    batches = list(content)
    offsets = [(batch.header.base_offset, batch.header.next_offset) for batch in batches]
    if any(later < end for (_, end), (later, _) in pairwise(offsets)):
        yield "its batches are not ordered by offset"
    first = min((start for start, _ in offsets), default=file.next_offset)
    last = max((end for _, end in offsets), default=file.first_offset)
    if first > file.first_offset or last < file.next_offset:
        yield f"it has offsets {first} to {last - 1}, but should have {file.first_offset} to {file.next_offset - 1}"
    for batch in batches:
        if not has_valid_crc(batch.data, batch.header):
            yield f"the CRC of the batch at offset {batch.header.base_offset} is wrong"
