"""The disk port: append-only files, small files that are replaced as a whole, and offloading of slow calls.

Calls are synchronous. The event loop makes those that only touch the page cache (appends, reads of recent writes).
Calls that may block for long (syncs, creating files, cold reads) go through `Disk.offload`. Every failure is a
`StorageError` that names the path. Its subclass `PassingStorageError` means a transient cause, after which the call can
be retried: the disk is full, or the process has no descriptors left.

The event loop renames files while threads work. A thread therefore uses a `File` or a `Directory`, which stay valid
whatever their current name is, and never a name that the loop may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from tailrace.errors import StorageError

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview


class PassingStorageError(StorageError):
    """A call was refused for a reason other than a disk failure, and did nothing."""

    @property
    def with_advice(self) -> str:
        """The error message with advice."""
        return str(self)


class DiskFullError(PassingStorageError):
    """There is no space for a write; none of it remains in the file."""

    @property
    def with_advice(self) -> str:
        return f"{self}: free space and retry"


class TooManyOpenFilesError(PassingStorageError):
    """The process or the machine has reached its limit of open files and sockets."""


class RemovedError(StorageError):
    """A directory was removed through this port while it was still in use."""


class Volume(NamedTuple):
    """The volume of a directory: its size, and the space that may still be written."""

    total_bytes: int
    usable_bytes: int


class Readable(Protocol):
    """A file open for reading. It closes with its last reference, so a range being sent stays readable."""

    @property
    def path(self) -> str: ...

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes at a position; fewer only at the end of the file."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether reading the range is unlikely to wait for the disk."""
        ...

    def prefetch(self, position: int, size: int) -> bytes:
        """Read a range that may not be in memory yet, so that it is. Blocks: call it through `Disk.offload`."""
        ...


class File(Readable, Protocol):
    """An open file on a disk."""

    @property
    def size(self) -> int:
        """Its length in bytes, including every write made through this port."""
        ...

    def append(self, data: Buffer) -> None:
        """Append all of the data or nothing: after an error the file has its previous length."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to a length."""
        ...

    def sync(self) -> None:
        """Make everything written so far survive a power failure. Blocks: call it through `Disk.offload`."""
        ...


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file, to be sent without reading them in Python."""

    file: Readable
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


class Directory(Protocol):
    """A directory that stays valid when it is renamed; every call raises `RemovedError` after its removal."""

    @property
    def path(self) -> str: ...

    def list(self) -> Sequence[str]:
        """The sorted names in the directory."""
        ...

    def replace_file(self, name: str, content: bytes, *, sync: bool = True) -> None:
        """Write a small file in the directory, like `Disk.replace_file`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file in the directory, if it exists."""
        ...

    def sync(self) -> None:
        """Make creations, renames and removals in it survive a power failure. Blocks: call through `Disk.offload`."""
        ...


class Disk(Protocol):
    """Directories and files of one machine. Paths are '/'-separated strings."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending; `create` creates an empty file if it does not exist."""
        ...

    def directory(self, path: str) -> Directory:
        """A handle to the directory that has this name now."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """The whole content of a small file, or None if it does not exist."""
        ...

    def replace_file(self, path: str, content: bytes, *, sync: bool = True) -> None:
        """Write a small file so that after a crash it has either its old content or the new, never a mixture.

        A thread may replace it at the same time; either content may be the last.
        """
        ...

    def list(self, path: str) -> Sequence[str]:
        """The sorted names in a directory; empty if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, if they do not exist."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists.

        Open files stay readable. A thread may call this if nothing else uses the name.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory. Open files stay usable."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory survive a power failure. Blocks."""
        ...

    def sync_all(self, path: str) -> bool:
        """Make everything below a durable directory survive a power failure; False if not supported. Blocks."""
        ...

    def volume(self, path: str) -> Volume:
        """The volume of an existing directory. Blocks if it is a remote volume."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a blocking call outside the event loop and wait for its result."""
        ...
