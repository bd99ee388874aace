"""A file system that turns read-only while it is in use, as a real one does when its disk reports errors.

Owns one ext4 image on a loop device. A remount would be refused while files are open; an error that the kernel is
told of is not. Where this process may not mount, it says so by an error that names the reason.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


class FailingDisk:
    """An ext4 file system at its own path; a context manager."""

    def __init__(self, path: Path, megabytes: int = 48) -> None:
        self.path = path
        self._image = path.with_name(path.name + ".image")
        self._megabytes = megabytes

    def __enter__(self) -> FailingDisk:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "--lazy", str(self.path))
        self._image.unlink()

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    def turn_read_only(self) -> None:
        """Report an error to the kernel, which then refuses every write."""
        device = _run("findmnt", "--noheadings", "--output", "SOURCE", str(self.path)).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Check and remount it; no file may be open there."""
        _run("umount", str(self.path))
        # 1 says that errors were found and corrected.
        _run("e2fsck", "-f", "-y", str(self._image), accepted=(0, 1))
        self._mount()


def _run(*command: str, accepted: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
