"""Parts of a file at their original positions, for a Parquet reader that expects a file.

Reading bytes that were not fetched is an error; they never read as zeros.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class FilePieces:
    """Pieces of a file with their positions, in order."""

    closed = False

    def __init__(self, pieces: Sequence[tuple[int, bytes]], size: int) -> None:
        self._starts = [start for start, _ in pieces]
        self._contents = [memoryview(content) for _, content in pieces]
        self._size = size
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, length: int = -1) -> bytes:
        index = bisect_right(self._starts, self._at) - 1
        begin = self._at - self._starts[index]
        end = begin + length
        if index < 0 or length < 0 or end > len(self._contents[index]):
            raise OSError(f"{length} bytes at {self._at} are outside of the requested columns")
        self._at += length
        return bytes(self._contents[index][begin:end])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
