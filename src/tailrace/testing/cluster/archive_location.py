"""In-memory locations of archives: a reliable one for checks, and an unreliable one for archivers and brokers.

Each call happens at one instant, and a file is there whole or not at all, as the port promises. This module must not
know what is in the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tailrace.archive.errors import (
    ArchiveCorruptError,
    ArchiveUnreachableError,
    FileExistsInArchiveError,
    FileMissingError,
)
from tailrace.archive.location import Entry, check_name
from tailrace.runtime.disk import Buffer


class MemoryLocation:
    """Files in a dictionary, which several locations may share."""

    def __init__(self, uri: str, files: dict[str, bytes] | None = None) -> None:
        self.uri = uri
        self.files: dict[str, bytes] = {} if files is None else files

    def check(self) -> None:
        """Always available."""

    def create(self) -> None:
        """Always available."""

    def read_all(self, name: str) -> bytes:
        check_name(name)
        if name not in self.files:
            raise FileMissingError(f"{self.uri}: {name} is missing")
        return self.files[name]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        content = self.read_all(name)[start : start + length]
        if len(content) < length:
            raise ArchiveCorruptError(f"{self.uri}: {name} ends before {start + length}")
        return content

    def size(self, name: str) -> int:
        return len(self.read_all(name))

    def write_new(self, name: str, data: Buffer) -> None:
        check_name(name)
        if name in self.files:
            raise FileExistsInArchiveError(f"{self.uri}: {name} already exists")
        self.files[name] = bytes(data)

    def list(self, directory: str) -> Iterator[Entry]:
        below = f"{directory}/"
        found = [(name, data) for name, data in self.files.items() if name.startswith(below)]
        # The age of files is not used here.
        return iter(sorted(Entry(name, len(data), 0) for name, data in found))

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def close(self) -> None:
        pass


class ShakyLocation(MemoryLocation):
    """A location that is unavailable when a test says so, and sometimes writes a file but raises an error."""

    def __init__(self, uri: str, files: dict[str, bytes], random: Random, *, unanswered: float = 0.05) -> None:
        super().__init__(uri, files)
        self.is_away = False
        self._random = random
        self._unanswered = unanswered

    def read_all(self, name: str) -> bytes:
        self._reach()
        return super().read_all(name)

    def write_new(self, name: str, data: Buffer) -> None:
        self._reach()
        super().write_new(name, data)
        if self._random.random() < self._unanswered:
            raise ArchiveUnreachableError(f"{self.uri} does not say whether {name} was written")

    def _reach(self) -> None:
        if self.is_away:
            raise ArchiveUnreachableError(f"{self.uri} does not answer")
