"""The physical limits of the machine: writing to the page cache, loopback TCP, fdatasync.

Measured in the same run and on the same disk as the systems, so that each result can be given as a share of them.
"""

from __future__ import annotations

import mmap
import os
import re
import socket
import statistics
import time
from pathlib import Path

CHUNK = bytes(1 << 20)
WRITE_CHUNKS = 512
LOOPBACK_CHUNKS = 2048
SYNCS = 100
#: The best attempt counts, as it is a limit.
ATTEMPTS = 3
TOUCHED_BYTES_MAX = 8_000_000_000


def touch_memory() -> None:
    """Use half of the free memory once and release it.

    A virtual machine's host provides a page when it is first touched, several times slower than later: the first system
    would pay for all.
    """
    found = re.search(r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    size = min(int(found[1]) * 1024 // 2, TOUCHED_BYTES_MAX) if found else 0
    if size < mmap.PAGESIZE:
        return
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size - len(CHUNK), len(CHUNK)):
            memory[start : start + len(CHUNK)] = CHUNK


def measure(directory: Path) -> dict[str, float]:
    """Measure all limits once."""
    return {
        "page_cache_write_mb_s": max(page_cache_write_mb_s(directory) for _ in range(ATTEMPTS)),
        "loopback_mb_s": max(loopback_mb_s() for _ in range(ATTEMPTS)),
        "fdatasync_p50_ms": fdatasync_p50_ms(directory),
    }


def page_cache_write_mb_s(directory: Path, chunks: int = WRITE_CHUNKS) -> float:
    """Return the MB/s of appending to a new file in pieces of 1 MiB, without waiting for the disk."""
    path = directory / "limit-write"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        started = time.perf_counter()
        for _ in range(chunks):
            os.write(descriptor, CHUNK)
        seconds = time.perf_counter() - started
    finally:
        os.close(descriptor)
        path.unlink()
    return chunks * len(CHUNK) / 1e6 / seconds


def loopback_mb_s(chunks: int = LOOPBACK_CHUNKS) -> float:
    """Return the MB/s of one TCP connection over loopback between two processes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            # Only this process's own code runs here: none of the parent's cleanup may.
            try:
                _receive_all(listener.getsockname()[1])
            finally:
                os._exit(0)
        connection, _ = listener.accept()
        with connection:
            started = time.perf_counter()
            for _ in range(chunks):
                connection.sendall(CHUNK)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            seconds = time.perf_counter() - started
        os.waitpid(child, 0)
    return chunks * len(CHUNK) / 1e6 / seconds


def _receive_all(port: int) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv_into(buffer):
            pass
        connection.sendall(b".")


def fdatasync_p50_ms(directory: Path, syncs: int = SYNCS) -> float:
    """Return the median time of an fdatasync after an append of 4 KiB."""
    path = directory / "limit-sync"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    took: list[float] = []
    try:
        for _ in range(syncs):
            os.write(descriptor, CHUNK[:4096])
            started = time.perf_counter()
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(took) * 1000
