"""Sparse indexes beside a segment, in Kafka's file formats: offset to position, and timestamp to offset.

An index is only a hint: after a crash it may be behind its log, and is rebuilt. The newest entries stay in memory until
there are enough for one write, so an append needs no second system call. There is no mmap, because a full disk would
raise SIGBUS.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator

from tailrace.errors import StorageError
from tailrace.runtime.disk import Disk, File, PassingStorageError

_ENTRIES_PER_WRITE = 128
_BLOCK_BYTES = 4096


class SparseIndex:
    """Pairs of growing numbers, most of them in a file and the newest in memory."""

    def __init__(self, disk: Disk, path: str, entry: struct.Struct) -> None:
        self._disk = disk
        self._entry = entry
        self._file: File = disk.open(path, create=True)
        whole = self._file.size // entry.size * entry.size
        if whole != self._file.size:
            self._file.truncate(whole)
        self._in_file = whole // entry.size
        self._tail: list[tuple[int, int]] = []
        #: The size of the file with all entries written; kept up to date here because every append to a log needs it.
        self.size_bytes = whole
        self._last_found = 0
        self._last: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._in_file + len(self._tail)

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index >= self._in_file:
            return self._tail[index - self._in_file]
        data = self._file.read(index * self._entry.size, self._entry.size)
        if len(data) < self._entry.size:
            raise StorageError(f"{self._file.path} is shorter than it was: remove it and restart to rebuild it")
        first, second = self._entry.unpack(data)
        return first, second

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from self._entry.iter_unpack(self._file.read(0, self._in_file * self._entry.size))
        yield from self._tail

    def last(self) -> tuple[int, int] | None:
        """The newest entry; read from disk at most once."""
        if self._last is None and len(self):
            self._last = self[len(self) - 1]
        return self._last

    def append(self, first: int, second: int) -> None:
        self._last = (first, second)
        self._tail.append(self._last)
        self.size_bytes += self._entry.size
        if len(self._tail) >= _ENTRIES_PER_WRITE:
            self.flush()

    def flush(self) -> None:
        """Write the entries that are only in memory; if the disk refuses, they stay there until it accepts them."""
        if not self._tail:
            return
        pack = self._entry.pack
        try:
            self._file.append(b"".join([pack(first, second) for first, second in self._tail]))
        except PassingStorageError:
            return
        self._in_file += len(self._tail)
        self._tail.clear()

    def sync(self) -> None:
        self._file.sync()

    def floor(self, value: int, by: int = 0) -> tuple[int, int] | None:
        """The last entry whose first (or, with by=1, second) number is not above a value."""
        tail = self._tail
        if tail and tail[0][by] <= value:
            return tail[bisect_right(tail, value, key=lambda pair: pair[by]) - 1]
        if not self._in_file:
            return None
        # Readers mostly go forward: try the entries after the last one found before searching the whole file.
        found = self._floor_in_block(self._last_found, value, by)
        return found if found is not None else self._floor_in_file(value, by)

    def _floor_in_block(self, start: int, value: int, by: int) -> tuple[int, int] | None:
        """The answer, if the block of entries at `start` contains it; else None."""
        entry = self._entry
        block = self._file.read(start * entry.size, min(_BLOCK_BYTES, (self._in_file - start) * entry.size))
        count = len(block) // entry.size
        if count == 0 or entry.unpack_from(block, 0)[by] > value:
            return None
        ends_file = start + count >= self._in_file
        if not ends_file and entry.unpack_from(block, (count - 1) * entry.size)[by] <= value:
            return None
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            if entry.unpack_from(block, middle * entry.size)[by] <= value:
                low = middle + 1
            else:
                high = middle
        self._last_found = start + low - 1
        first, second = entry.unpack_from(block, (low - 1) * entry.size)
        return first, second

    def _floor_in_file(self, value: int, by: int) -> tuple[int, int] | None:
        low, high = 0, self._in_file
        while low < high:
            middle = (low + high) // 2
            if self[middle][by] <= value:
                low = middle + 1
            else:
                high = middle
        if not low:
            return None
        self._last_found = low - 1
        return self[low - 1]

    def count_below(self, value: int, by: int = 0) -> int:
        """The number of entries whose first (or, with by=1, second) number is below a value."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle][by] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def truncate(self, entries: int) -> None:
        """Keep only the first `entries` entries."""
        self._last = None
        if entries < self._in_file:
            self._file.truncate(entries * self._entry.size)
            self._in_file = entries
            self._last_found = 0
            self._tail.clear()
        else:
            del self._tail[entries - self._in_file :]
        self.size_bytes = len(self) * self._entry.size


class OffsetIndex(SparseIndex):
    """Maps a batch's last offset, relative to the base offset, to the batch's position."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path, struct.Struct(">iI"))


class TimeIndex(SparseIndex):
    """Maps the largest timestamp so far to the relative offset of its batch."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path, struct.Struct(">qi"))
