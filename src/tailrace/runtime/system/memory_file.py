"""Files in memory by which the helper process hands over many bytes: the broker sends from them, and copies nothing.

Owns their descriptors, which both processes have from the start of the worker: it writes an answer into the file that
it was lent, and the broker gets the file back when the last reference to what was in it has gone. What was written
before is cut off first, so that bytes which are still on their way to a client stay what they were.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class MemoryFile:
    """What one answer left in a file in memory; read by whoever has it, as any file."""

    __slots__ = ("_descriptor", "_give_back", "path")

    def __init__(self, descriptor: int, give_back: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._give_back = give_back
        self.path = f"memory file {descriptor}"

    def __del__(self) -> None:
        self._give_back(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def is_cached(self, position: int, size: int) -> bool:
        return True

    def prefetch(self, position: int, size: int) -> bytes:
        return self.read(position, size)


class MemoryFiles:
    """The files in memory that one worker process may be lent: so many, or as many as there are descriptors for."""

    def __init__(self, most: int) -> None:
        self._free: list[int] = []
        self._is_closed = False
        try:
            while len(self._free) < most:
                self._free.append(os.memfd_create("tailrace-answer"))
        except OSError:
            pass  # large answers are received, then
        self.descriptors = tuple(self._free)

    def lend(self) -> int | None:
        """A file for one answer; None where all are lent."""
        return self._free.pop() if self._free else None

    def take(self, descriptor: int) -> MemoryFile:
        """The file that was lent, with an answer in it: it is free again when nobody has it any more."""
        return MemoryFile(descriptor, self.give_back)

    def give_back(self, descriptor: int) -> None:
        """A file that was lent is needed no longer."""
        if self._is_closed:
            os.close(descriptor)
        else:
            self._free.append(descriptor)

    def close(self) -> None:
        """Close those that are free, and the others when they are given back."""
        self._is_closed = True
        while self._free:
            os.close(self._free.pop())
