"""A location in a directory of this machine, or in one that all machines mount.

A file is written under a temporary name, synced, and linked to its own name: it exists as a whole or not at all, and
never replaces another.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.archive.errors import (
    ArchiveCorruptError,
    ArchiveDeniedError,
    ArchiveFullError,
    ArchiveUnreachableError,
    ArchiveUriError,
    FileExistsInArchiveError,
    FileMissingError,
    LocationMissingError,
)
from tailrace.archive.layout import UNFINISHED_PREFIX, unique
from tailrace.archive.location import ArchiveUri, Entry, check_name
from tailrace.runtime.disk import Buffer

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_directory(uri: str, parsed: ArchiveUri) -> LocalDirectory:
    """The location of a `file:` URI or an absolute path."""
    if parsed.host not in ("", "localhost"):
        raise ArchiveUriError(f"'{uri}' has the host '{parsed.host}': write file:///path for a directory")
    if not parsed.path.startswith("/"):
        raise ArchiveUriError(f"'{uri}' is not an absolute path, so processes would resolve it differently")
    if parsed.options:
        raise ArchiveUriError(f"'{uri}' has options, but a directory has none")
    return LocalDirectory(uri, Path(parsed.path))


class LocalDirectory:
    """Files below one directory."""

    def __init__(self, uri: str, root: Path) -> None:
        self.uri = uri
        self._root = root

    def check(self) -> None:
        with self._errors(""):
            if not self._root.is_dir():
                raise self._missing()
            os.scandir(self._root).close()

    def create(self) -> None:
        with self._errors(""):
            self._make_directories(self._root)

    def read_all(self, name: str) -> bytes:
        with self._errors(name):
            return self._path(name).read_bytes()

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self._errors(name), self._path(name).open("rb", buffering=0) as file:
            data = bytearray(length)
            view = memoryview(data)
            at = 0
            while at < length:
                count = os.preadv(file.fileno(), [view[at:]], start + at)
                if count == 0:
                    raise ArchiveCorruptError(f"{self.uri}: {name} ends after {start + at} of {start + length} bytes")
                at += count
            return bytes(data)

    def size(self, name: str) -> int:
        with self._errors(name):
            return self._path(name).stat().st_size

    def write_new(self, name: str, data: Buffer) -> None:
        path = self._path(name)
        unfinished = path.with_name(f"{UNFINISHED_PREFIX}{unique()}-{path.name}")
        with self._errors(name):
            if not self._root.is_dir():
                raise self._missing()
            self._make_directories(path.parent)
            try:
                with unfinished.open("xb", buffering=0) as file:
                    rest = memoryview(data).cast("B")
                    while rest:
                        rest = rest[file.write(rest) :]
                    os.fsync(file.fileno())
                os.link(unfinished, path)  # fails if the name is taken, unlike a rename
            finally:
                unfinished.unlink(missing_ok=True)
            _sync_directory(path.parent)

    def list(self, directory: str) -> Iterator[Entry]:
        check_name(directory)
        with self._errors(directory):
            if not self._root.is_dir():
                raise self._missing()
            found = []
            for parent, _, files in os.walk(self._root / directory):
                for file in files:
                    path = Path(parent, file)
                    try:
                        status = path.stat()
                    except FileNotFoundError:
                        continue  # deleted in between
                    name = path.relative_to(self._root).as_posix()
                    found.append(Entry(name, status.st_size, status.st_mtime_ns // 1_000_000))
        return iter(sorted(found))

    def delete(self, name: str) -> None:
        with self._errors(name):
            if not self._root.is_dir():
                raise self._missing()
            self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        pass

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._root / name

    def _make_directories(self, directory: Path) -> None:
        """Create missing directories from the top, each durable before anything is in it."""
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_directory(path.parent)

    def _missing(self) -> LocationMissingError:
        what = "is not a directory" if self._root.exists() else "does not exist"
        return LocationMissingError(f"the archive's directory {self._root} {what}: check that it is mounted here")

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        where = f"{self._root}/{name}" if name else str(self._root)
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            if not self._root.is_dir():
                raise self._missing() from error
            raise FileMissingError(f"{where} is missing") from error
        except FileExistsError as error:
            if not name:
                raise self._missing() from error
            raise FileExistsInArchiveError(f"{where} already exists") from error
        except OSError as error:
            if error.errno in _DENIED:
                raise ArchiveDeniedError(f"cannot access {where}: {error.strerror}") from error
            if error.errno in _FULL:
                raise ArchiveFullError(f"cannot write {where}: {error.strerror}") from error
            raise ArchiveUnreachableError(f"cannot access {where} now: {error.strerror or error}") from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
