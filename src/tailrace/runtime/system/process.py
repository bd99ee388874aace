"""What a broker asks of its process: file descriptors, and that no other process has its data."""

from __future__ import annotations

import fcntl
import os
import resource

from tailrace.errors import StorageError

_LOCK_FILE = ".lock"
#: Descriptors of the interpreter, the store, the listeners, and of small files while they are written.
_OWN_DESCRIPTORS = 32
_FEWEST_FILES = 16
_FEWEST_CONNECTIONS = 16
_MOST_FILES = 1 << 16


def raise_descriptor_limit() -> int:
    """Use all the descriptors that the system allows, and say how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass
    return soft


def default_open_files(limit: int) -> int:
    """How many segment files may be open at once where nobody said."""
    return max(_FEWEST_FILES, min((limit - _OWN_DESCRIPTORS) // 2, _MOST_FILES))


def connections_beside(open_files: int, limit: int) -> int:
    """How many connections the descriptors are enough for, beside so many open segment files."""
    connections = limit - open_files - _OWN_DESCRIPTORS
    if connections < _FEWEST_CONNECTIONS:
        raise StorageError(
            f"only {limit} files and sockets may be open at once, a broker needs at least "
            f"{open_files + _OWN_DESCRIPTORS + _FEWEST_CONNECTIONS}: raise the limit (ulimit -n, LimitNOFILE)"
        )
    return connections


class UnusableDirectoryError(StorageError):
    """A data directory cannot be written to, whoever may use it."""


class DirectoryLock:
    """A directory that only this process may use, for as long as the lock is held."""

    def __init__(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
            self._descriptor = os.open(f"{directory}/{_LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UnusableDirectoryError(
                f"cannot use the data directory {directory}: {error.strerror}; make it writable for this user, or give "
                "another with --data-dir"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise StorageError(
                f"another broker is running on {directory}: stop it, or give this one its own --data-dir"
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)


def lock_owner(directory: str) -> int | None:
    """The pid of the process whose directory this is; 0 where it cannot be named, None where there is no such process.

    Takes nothing that a broker which starts at the same time would miss for more than a moment.
    """
    try:
        descriptor = os.open(f"{directory}/{_LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        named = _flock_owner(os.fstat(descriptor))
        if named is not None:
            return named
        # A lock held outside this process's view, in another container say, is in no list.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    finally:
        os.close(descriptor)
    return None


def _flock_owner(file: os.stat_result) -> int | None:
    """Who has the file locked, by the list that the kernel keeps."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    try:
        with open("/proc/locks") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return None
    for fields in lines:
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == f"{device}:{file.st_ino}":
            return int(fields[4])
    return None
