"""Reading an archive as a query does: some columns of some files, within a range of offsets and a range of times.

Only row groups that may have matching rows are read, and of them only the bytes of the requested columns. The next part
is fetched while the previous one is decoded. Every page that is read is verified, and rows are ordered by offset. This
module does not know what the rows are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.archive.errors import ArchiveCorruptError
from tailrace.archive.file_pieces import FilePieces
from tailrace.archive.location import Location
from tailrace.archive.manifest import ArchivedFile
from tailrace.archive.parquet import Footer, read_footer

#: Approximate size of the requested columns that are decoded at once.
WINDOW_BYTES = 4 << 20
#: Unneeded bytes up to this many are read rather than skipped.
_GAP_BYTES = 64 << 10
#: Maximum size of one request.
_RANGE_BYTES = 8 << 20
_READS_AT_ONCE = 8
_FOOTERS_AHEAD = 4

EVER = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read: offsets from `start` up to `end` (exclusive), columns, and a range of times in ms (inclusive)."""

    start: int
    end: int
    columns: tuple[str, ...]
    times_ms: tuple[int, int] = EVER


class Scanned(NamedTuple):
    """Rows, and the offset after which to continue: all matching rows below it have been returned."""

    table: pa.Table
    next_offset: int


def scan_files(location: Location, directory: str, files: Sequence[ArchivedFile], wanted: Wanted) -> Iterator[Scanned]:
    """The matching rows of adjacent files."""
    chosen = [file for file in files if file.may_have(*wanted.times_ms)]
    pool = ThreadPoolExecutor(_READS_AT_ONCE, "archive scan")

    def read(file: ArchivedFile, start: int, end: int) -> Future[bytes]:
        return pool.submit(location.read_range, f"{directory}/{file.name}", start, end - start)

    try:
        footers: deque[Future[bytes]] = deque()
        for number, file in enumerate(chosen):
            # Fetch the footers of the next files early, because small files are limited by latency.
            for later in chosen[number + len(footers) : number + _FOOTERS_AHEAD]:
                footers.append(read(later, later.bytes - later.footer_bytes, later.bytes))
            scan = _FileScan(file, read_footer(footers.popleft().result(), file), wanted)
            yield from scan.rows(partial(read, file))
    finally:
        pool.shutdown(cancel_futures=True)


class _FileScan:
    """The parts of one file to read, and their decoding."""

    def __init__(self, file: ArchivedFile, footer: Footer, wanted: Wanted) -> None:
        self._file = file
        self._footer = footer
        self._wanted = wanted
        self._has_times = wanted.times_ms != EVER
        needed = {"offset", *wanted.columns, *(("timestamp",) if self._has_times else ())}
        schema = footer.metadata.schema
        paths = [schema.column(index).path for index in range(len(schema))]
        self._leaves = [index for index, path in enumerate(paths) if path.split(".")[0] in needed]
        self._columns = sorted(needed)
        self._timestamp = paths.index("timestamp")

    def rows(self, read: Callable[[int, int], Future[bytes]]) -> Iterator[Scanned]:
        """The matching rows of the file; the next part is fetched while the current one is decoded."""
        windows = self._windows()
        coming: deque[list[tuple[int, Future[bytes]]]] = deque()
        for number, window in enumerate(windows):
            for later in windows[number + len(coming) : number + 2]:
                coming.append([(start, read(start, end)) for start, end in self._bytes_of(later)])
            table = self._decode(window, [(start, piece.result()) for start, piece in coming.popleft()])
            if table.num_rows:
                yield Scanned(table, int(self._footer.last_offsets[window[-1]]) + 1)

    def _windows(self) -> list[list[int]]:
        """The row groups to read, in order, grouped by how many are decoded at once."""
        windows: list[list[int]] = []
        size = WINDOW_BYTES
        for group in self._groups():
            metadata = self._footer.metadata.row_group(group)
            bytes_here = sum(metadata.column(leaf).total_uncompressed_size for leaf in self._leaves)
            if size + bytes_here > WINDOW_BYTES:
                windows.append([])
                size = 0
            windows[-1].append(group)
            size += bytes_here
        return windows

    def _groups(self) -> Iterator[int]:
        footer, wanted = self._footer, self._wanted
        for group in range(footer.group_at(wanted.start), footer.row_groups):
            if footer.first_offsets[group] >= wanted.end:
                return
            if self._has_times:
                times = footer.metadata.row_group(group).column(self._timestamp).statistics
                if times.min_raw > wanted.times_ms[1] or times.max_raw < wanted.times_ms[0]:
                    continue
            yield group

    def _bytes_of(self, groups: Sequence[int]) -> list[tuple[int, int]]:
        """The byte ranges of the columns in row groups; ranges close to each other are merged."""
        found: list[tuple[int, int]] = []
        for start, end in sorted(self._chunk(group, leaf) for group in groups for leaf in self._leaves):
            if found and start - found[-1][1] <= _GAP_BYTES and end - found[-1][0] <= _RANGE_BYTES:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start, end))
        return found

    def _chunk(self, group: int, leaf: int) -> tuple[int, int]:
        column = self._footer.metadata.row_group(group).column(leaf)
        dictionary = column.dictionary_page_offset
        start = column.data_page_offset if dictionary is None else min(dictionary, column.data_page_offset)
        return int(start), int(start + column.total_compressed_size)

    def _decode(self, groups: Sequence[int], pieces: Sequence[tuple[int, bytes]]) -> pa.Table:
        """The matching rows of row groups, from bytes with all of the needed columns."""
        file = self._file
        try:
            reader = pq.ParquetFile(
                pa.PythonFile(FilePieces(pieces, file.bytes), mode="r"),
                metadata=self._footer.metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_groups(list(groups), columns=self._columns, use_threads=False)
        except (OSError, ValueError) as error:
            raise ArchiveCorruptError(f"{file.name} was altered or truncated: {error}") from error
        offsets = table.column("offset").to_numpy()
        self._check(groups, offsets)
        first, last = np.searchsorted(offsets, (self._wanted.start, self._wanted.end)).tolist()
        table = table.slice(first, last - first)
        if not self._has_times:
            return table
        times = table.column("timestamp").cast(pa.int64()).to_numpy()
        return table.filter(pa.array((times >= self._wanted.times_ms[0]) & (times <= self._wanted.times_ms[1])))

    def _check(self, groups: Sequence[int], offsets: Any) -> None:
        footer = self._footer
        rows = sum(footer.metadata.row_group(group).num_rows for group in groups)
        is_sound = len(offsets) == rows > 0 and not (np.diff(offsets) <= 0).any()
        bounds = footer.first_offsets[groups[0]], footer.last_offsets[groups[-1]]
        if not is_sound or (offsets[0], offsets[-1]) != bounds:
            raise ArchiveCorruptError(f"{self._file.name} does not have the rows that its footer lists")
