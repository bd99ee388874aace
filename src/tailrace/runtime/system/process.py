"""What a broker asks of its process: file descriptors, and that no other process has its data."""

from __future__ import annotations

import fcntl
import os
import resource

from tailrace.errors import StorageError

_LOCK_FILE = ".lock"
#: Descriptors left for sockets, the store and the interpreter itself.
_RESERVED_SHARE = 2


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
    return max(16, min(limit // _RESERVED_SHARE, 1 << 16))


class DirectoryLock:
    """A directory that only this process may use, for as long as the lock is held."""

    def __init__(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
            self._descriptor = os.open(f"{directory}/{_LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"cannot use the data directory {directory}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise StorageError(
                f"another broker is running on {directory}: stop it, or give this one its own --data-dir"
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)
