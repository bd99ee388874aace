"""The real disk with a rate limit on reads and appends of file content, counted together."""

from __future__ import annotations

import time

from tailrace.runtime.disk import Buffer
from tailrace.runtime.system.disk import SystemDisk, SystemFile


class PacedFile(SystemFile):
    """A file whose reads and appends wait to stay within the rate; for threads that may block."""

    __slots__ = ("_paced",)

    def __init__(self, disk: PacedDisk, path: str, *, create: bool) -> None:
        super().__init__(disk, path, create=create)
        self._paced = disk

    def read(self, position: int, size: int) -> bytes:
        data = super().read(position, size)
        self._paced.account(len(data))
        return data

    def append(self, data: Buffer) -> None:
        super().append(data)
        self._paced.account(len(data))


class PacedDisk(SystemDisk):
    """A file system for a single caller that is in no hurry."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__()
        self._rate = bytes_per_second
        self._free_at = time.monotonic()

    def account(self, size: int) -> None:
        """Wait until the rate allows this many more bytes."""
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + size / self._rate
        if self._free_at > now:
            time.sleep(self._free_at - now)

    def open(self, path: str, *, create: bool = False) -> PacedFile:
        return PacedFile(self, path, create=create)
