"""The broker's process: its limit of file descriptors, and the lock on its data directory."""

from __future__ import annotations

import fcntl
import os
import resource

from tailrace.errors import StorageError

_LOCK_FILE = ".lock"
#: Descriptors for the interpreter, the store, the listeners, and small files while they are written.
_OWN_DESCRIPTORS = 32
_FEWEST_FILES = 16
_FEWEST_CONNECTIONS = 16
_MOST_FILES = 1 << 16


def raise_descriptor_limit() -> int:
    """Raise the limit of descriptors to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass
    return soft


def default_open_files(limit: int) -> int:
    """The default limit of open segment files."""
    return max(_FEWEST_FILES, min((limit - _OWN_DESCRIPTORS) // 2, _MOST_FILES))


def connections_beside(open_files: int, limit: int) -> int:
    """How many connections the remaining descriptors allow, beside this many open segment files."""
    connections = limit - open_files - _OWN_DESCRIPTORS
    if connections < _FEWEST_CONNECTIONS:
        raise StorageError(
            f"the limit of {limit} open files and sockets is too low, a broker needs at least "
            f"{open_files + _OWN_DESCRIPTORS + _FEWEST_CONNECTIONS}: raise it (ulimit -n, LimitNOFILE)"
        )
    return connections


class UnusableDirectoryError(StorageError):
    """A data directory cannot be written to."""


class DirectoryLock:
    """Exclusive use of a directory while the lock is held."""

    def __init__(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
            self._descriptor = os.open(f"{directory}/{_LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UnusableDirectoryError(
                f"cannot use the data directory {directory}: {error.strerror}; make it writable for this user, or "
                "choose another with --data-dir"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise StorageError(
                f"another broker is running on {directory}: stop it, or choose another --data-dir"
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)


def lock_owner(directory: str) -> int | None:
    """The pid of the process that holds a directory's lock; 0 if it is unknown, None if there is no such process.

    A broker that starts at the same time is hindered only for a moment.
    """
    try:
        descriptor = os.open(f"{directory}/{_LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        named = _flock_owner(os.fstat(descriptor))
        if named is not None:
            return named
        # A lock held out of view, for example in another container, is in no list.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    finally:
        os.close(descriptor)
    return None


def _flock_owner(file: os.stat_result) -> int | None:
    """The process that holds the lock on a file, from the kernel's list."""
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
