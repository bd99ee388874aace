"""The aborted transactions of a segment: the transaction index beside it, in Kafka's format.

An entry is added when an abort marker is appended to the segment, so entries are in the order of their markers, and
their last stable offsets never fall. The file is small, is written at once and is synced with its segment. Nothing of
it stays in memory but a number per block of entries, so a lookup reads few entries, however many there are. Recovery
rebuilds the index of every segment that it checks.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.errors import StorageError
from tailrace.runtime.disk import Disk, File, PassingStorageError

_ENTRY = struct.Struct(">hqqqq")
_ENTRY_VERSION = 0
_BLOCK_ENTRIES = 256


class AbortedTransaction(NamedTuple):
    """One entry of a transaction index."""

    producer_id: int
    first_offset: int
    #: The offset of the marker.
    last_offset: int
    #: Every transaction that began below it had ended with this marker.
    last_stable_offset: int


_Entries = Sequence[AbortedTransaction]


def read_aborted(disk: Disk, paths: Iterable[str]) -> list[AbortedTransaction]:
    """The aborted transactions in index files, ordered by first offset; files may be missing."""
    found: list[AbortedTransaction] = []
    for path in paths:
        found += _parsed(disk.read_file(path) or b"")
    return sorted(found, key=lambda transaction: (transaction.first_offset, transaction.producer_id))


def render_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The content of an index file with these transactions."""
    return b"".join(_ENTRY.pack(_ENTRY_VERSION, *transaction) for transaction in transactions)


def _parsed(content: bytes) -> list[AbortedTransaction]:
    whole = len(content) - len(content) % _ENTRY.size
    return [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(memoryview(content)[:whole])]


class TransactionIndex:
    """The transaction index of one segment; there is no file until something is aborted."""

    __slots__ = ("_disk", "_file", "_in_file", "_last", "_lowest", "_path", "_tail")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = disk.open(path) if disk.exists(path) else None
        #: The number of entries in the file; a torn one at its end does not count.
        self._in_file = 0 if self._file is None else self._file.size // _ENTRY.size
        # What a full disk did not take.
        self._tail: list[AbortedTransaction] = []
        # The smallest first offset of each full block, as far as it was needed.
        self._lowest: dict[int, int] = {}
        self._last: AbortedTransaction | None = None

    def __len__(self) -> int:
        return self._in_file + len(self._tail)

    def __getitem__(self, index: int) -> AbortedTransaction:
        return self._between(index, index + 1)[0]

    @property
    def file(self) -> File | None:
        """The file, if there is one."""
        return self._file

    @property
    def is_written(self) -> bool:
        """Whether all entries are in the file."""
        return not self._tail

    @property
    def last(self) -> AbortedTransaction | None:
        """The newest entry; read from disk at most once."""
        if self._last is None and len(self):
            self._last = self[len(self) - 1]
        return self._last

    def add(self, transaction: AbortedTransaction) -> None:
        """Add an entry; a full disk delays only its write."""
        self._tail.append(transaction)
        self._last = transaction
        self.flush()

    def flush(self) -> bool:
        """Write what a full disk refused; returns whether all entries are in the file."""
        if not self._tail:
            return True
        try:
            if self._file is None:
                self._file = self._disk.open(self._path, create=True)
            if self._file.size != self._in_file * _ENTRY.size:
                self._file.truncate(self._in_file * _ENTRY.size)
            self._file.append(render_aborted(self._tail))
        except PassingStorageError:
            return False
        self._in_file += len(self._tail)
        self._tail.clear()
        return True

    def truncate(self, end_offset: int) -> None:
        """Keep only transactions whose marker is below an offset."""
        self._keep(self._index_of(end_offset))

    def clear(self) -> None:
        """Remove all entries."""
        self._keep(0)

    def _keep(self, count: int) -> None:
        if count == len(self):
            return
        self._last = None
        del self._tail[max(0, count - self._in_file) :]
        if self._file is not None and count < self._in_file:
            self._file.truncate(count * _ENTRY.size)
            self._in_file = count
        self._lowest = {
            block: lowest for block, lowest in self._lowest.items() if (block + 1) * _BLOCK_ENTRIES <= count
        }

    def end_after(self, offset: int, count: int) -> int | None:
        """The offset after the marker that ends this many transactions from an offset on; None if there are fewer."""
        index = self._index_of(offset) + count - 1
        return self[index].last_offset + 1 if index < len(self) else None

    def collect(self, offset: int, upper_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the transactions with offsets in a range; returns whether later segments can have no more of them."""
        last = self.last
        if last is None or last.last_offset < offset:
            return False
        count = len(self)
        at = self._index_of(offset)
        # From here on, nothing that is aborted began below the upper offset.
        stable = bisect_left(range(at, count), upper_offset, key=lambda index: self[index].last_stable_offset) + at
        end = min(stable + 1, count)
        while at < end:
            block = at // _BLOCK_ENTRIES
            block_end = min((block + 1) * _BLOCK_ENTRIES, end)
            if self._lowest_of(block) < upper_offset:
                found += [each for each in self._between(at, block_end) if each.first_offset < upper_offset]
            at = block_end
        return stable < count

    def _index_of(self, offset: int) -> int:
        """The index of the first entry whose marker is at or after an offset."""
        return bisect_left(range(len(self)), offset, key=lambda index: self[index].last_offset)

    def _lowest_of(self, block: int) -> int:
        """The smallest first offset in a block."""
        known = self._lowest.get(block)
        if known is not None:
            return known
        start, end = block * _BLOCK_ENTRIES, (block + 1) * _BLOCK_ENTRIES
        lowest = min(each.first_offset for each in self._between(start, min(end, len(self))))
        if end <= len(self):
            self._lowest[block] = lowest
        return lowest

    def _between(self, start: int, end: int) -> _Entries:
        entries: list[AbortedTransaction] = []
        if start < self._in_file and self._file is not None:
            size = (min(end, self._in_file) - start) * _ENTRY.size
            data = self._file.read(start * _ENTRY.size, size)
            if len(data) < size:
                raise StorageError(f"{self._file.path} is shorter than it was: remove it and restart")
            entries = _parsed(data)
        if end > self._in_file:
            entries += self._tail[max(0, start - self._in_file) : end - self._in_file]
        return entries
