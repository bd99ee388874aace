"""The disk port: files that grow at the end, small files replaced whole, and a way to wait for slow calls.

Calls are synchronous and made in the event loop where they touch the page cache only (append, read what was
just written). What may block for long (sync, creating files, cold reads) goes through `Disk.offload`.
Every failure is a `StorageError` that names the path. One that passes by itself, after which the same call may be made
again, is its subclass `PassingStorageError`: the disk is full, or the process has no descriptor left.

The event loop changes names while threads work. A thread therefore works on a `File` or a `Directory`, which are what
they are whatever they are called by now, and never on the name of something that the loop may rename.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from tailrace.errors import StorageError

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview


class PassingStorageError(StorageError):
    """A call was refused and did nothing, for a reason that says nothing against the disk."""

    @property
    def with_advice(self) -> str:
        """What happened, and what to do."""
        return str(self)


class DiskFullError(PassingStorageError):
    """No space is left for a write; nothing of it remains in the file."""

    @property
    def with_advice(self) -> str:
        return f"{self}: free space and retry"


class TooManyOpenFilesError(PassingStorageError):
    """The process, or the machine, may open no more files and sockets at present."""


class RemovedError(StorageError):
    """A directory was removed through this port while somebody still had it."""


class Volume(NamedTuple):
    """What a directory is on: how much it holds in all, and how much more may be written to it."""

    total_bytes: int
    usable_bytes: int


class Readable(Protocol):
    """An open file to read from. It closes when the last reference to it goes, so a range being sent stays readable."""

    @property
    def path(self) -> str: ...

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes at a position; fewer only at the end of the file."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether reading the range is unlikely to wait for the disk."""
        ...

    def prefetch(self, position: int, size: int) -> bytes:
        """Read a range that may not be in memory, after which it is. Blocks: call it through `Disk.offload`."""
        ...


class File(Readable, Protocol):
    """An open file of a disk."""

    @property
    def size(self) -> int:
        """Its length in bytes, counting every write made through this port."""
        ...

    def append(self, data: Buffer) -> None:
        """Write at the end, all or nothing: after an error the file has its former length."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to a length."""
        ...

    def sync(self) -> None:
        """Make what was written so far survive a power cut. Blocks: call it through `Disk.offload`."""
        ...


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file, to be sent without being read by Python."""

    file: Readable
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


class Directory(Protocol):
    """One directory, wherever it is renamed to; every call raises `RemovedError` once it was removed."""

    @property
    def path(self) -> str: ...

    def list(self) -> Sequence[str]:
        """The sorted names in it."""
        ...

    def replace_file(self, name: str, content: bytes, *, sync: bool = True) -> None:
        """Write a small file in it, as `Disk.replace_file` does."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file in it; nothing where there is none."""
        ...

    def sync(self) -> None:
        """Make creations, renames and removals in it survive a power cut. Blocks: call it through `Disk.offload`."""
        ...


class Disk(Protocol):
    """Directories and files of one machine. Paths are '/'-separated strings."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending; with `create` it is made empty where it does not exist."""
        ...

    def directory(self, path: str) -> Directory:
        """The directory that has a name now."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """The whole content of a small file, or None where there is none."""
        ...

    def replace_file(self, path: str, content: bytes, *, sync: bool = True) -> None:
        """Write a small file so that after a crash it has its old content or the new, never a mixture.

        It may be replaced while a thread replaces it: either content may be the last.
        """
        ...

    def list(self, path: str) -> Sequence[str]:
        """The sorted names in a directory; empty where there is no such directory."""
        ...

    def exists(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents, unless it is there."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing where there is none.

        Open files stay readable. A thread may call it where nobody else uses the name.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory. Open files stay usable."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory survive a power cut. Blocks."""
        ...

    def sync_all(self, path: str) -> bool:
        """Make all that was written below a lasting directory survive a power cut; False if it cannot. Blocks."""
        ...

    def volume(self, path: str) -> Volume:
        """How large the volume of an existing directory is. Blocks where the volume is not of this machine."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a blocking call outside the event loop and wait for its result."""
        ...
