"""The page cache of a directory's files: writes it back, drops it, and measures what is left.

Needs no privileges: it works on the files themselves and not on the machine's whole cache.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

SMALLEST_BYTES = 1 << 20
PROBES = 64


def large_files(directory: Path) -> Iterator[Path]:
    """Yield the files that hold data, not bookkeeping."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.stat().st_size >= SMALLEST_BYTES:
            yield path


def drop(directory: Path) -> None:
    """Write the files back and let the kernel drop their pages."""
    for path in large_files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(directory: Path) -> float:
    """Return the share of evenly spread pages that are in memory, from 0 to 1."""
    probed = resident = 0
    for path in large_files(directory):
        size = path.stat().st_size
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # Random access: a probe must not read ahead what the next one checks.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for step in range(PROBES):
                probed += 1
                resident += _is_resident(descriptor, size * step // PROBES)
        finally:
            os.close(descriptor)
    return resident / probed if probed else 1.0


def _is_resident(descriptor: int, offset: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        raise
