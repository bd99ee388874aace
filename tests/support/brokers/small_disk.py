"""A file system of a few megabytes that can be filled up and freed again.

Owns one tmpfs mount. Where this process may not mount, it says so by an error that names the reason: nothing else
behaves like a full disk (a limit on file sizes gives another error), and a test that silently did less would lie.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class SmallDisk:
    """A tmpfs at its own path; a context manager."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        self._megabytes = megabytes
        self._ballast = path / "ballast"

    def __enter__(self) -> SmallDisk:
        self.path.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "tailrace-test", str(self.path))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "--lazy", str(self.path))

    def free_bytes(self) -> int:
        """The free space in bytes."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk except for some space, with a file that `free` removes."""
        surplus = self.free_bytes() - leave_bytes
        if surplus > 0:
            with self._ballast.open("ab") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, ballast.tell() + surplus)

    def free(self) -> None:
        """Free the space that `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        """Refuse every write from now on."""
        _run("mount", "-o", "remount,ro", str(self.path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
