"""The real disk, slowed down: reads and appends of file content stay below a rate, counted together."""

from __future__ import annotations

import time

from tailrace.runtime.disk import Buffer
from tailrace.runtime.system.disk import SystemDisk, SystemFile


class PacedFile(SystemFile):
    """A file whose every read and append waits for its turn; for threads that may wait."""

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
    """A file system used by one caller that is in no hurry."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__()
        self._rate = bytes_per_second
        self._free_at = time.monotonic()

    def account(self, size: int) -> None:
        """Wait until so many more bytes were due."""
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + size / self._rate
        if self._free_at > now:
            time.sleep(self._free_at - now)

    def open(self, path: str, *, create: bool = False) -> PacedFile:
        return PacedFile(self, path, create=create)
