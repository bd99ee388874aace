"""Memory files through which the helper process passes large results: the broker sends from them without a copy.

Owns their descriptors, which both processes share from the start of the worker. The worker writes a result into the
file assigned to the call, and the broker gets the file back when the last reference to its content is gone. The old
content is truncated first, so that bytes still on their way to a client do not change.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class MemoryFile:
    """The content of one result in a memory file; readable like any file."""

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
    """The memory files of one worker process: up to `most`, or as many as there are descriptors for."""

    def __init__(self, most: int) -> None:
        self._free: list[int] = []
        self._is_closed = False
        try:
            while len(self._free) < most:
                self._free.append(os.memfd_create("tailrace-answer"))
        except OSError:
            pass  # large results then go through the socket
        self.descriptors = tuple(self._free)

    def lend(self) -> int | None:
        """A file for one result; None if all are in use."""
        return self._free.pop() if self._free else None

    def take(self, descriptor: int) -> MemoryFile:
        """An assigned file with a result in it; it becomes free when nothing references it any more."""
        return MemoryFile(descriptor, self.give_back)

    def give_back(self, descriptor: int) -> None:
        """Return an assigned file."""
        if self._is_closed:
            os.close(descriptor)
        else:
            self._free.append(descriptor)

    def close(self) -> None:
        """Close free files now, and the others when they are returned."""
        self._is_closed = True
        while self._free:
            os.close(self._free.pop())
