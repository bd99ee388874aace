"""Functions for the tests of the helper: importable, because a real helper is another process."""

from __future__ import annotations

import os
import time

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.runtime.disk import Disk


def add(first: int, second: int) -> int:
    return first + second


def echo(value: object) -> object:
    return value


def repeat(byte: bytes, count: int) -> bytes:
    return byte * count


def repeat_when_there_is(path: str, byte: bytes, count: int) -> bytes:
    """The same, once such a file exists."""
    wait_for_file(path)
    return repeat(byte, count)


def refuse(message: str) -> None:
    raise StorageError(message)


def refuse_bytes(message: str) -> bytes:
    raise StorageError(message)


def refuse_in_kafkas_way(message: str) -> None:
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def write(disk: Disk, path: str, content: bytes) -> int:
    """Append to a file, and return its new length."""
    file = disk.open(path, create=True)
    file.append(content)
    file.sync()
    return file.size


def write_slowly(disk: Disk, path: str, pieces: int) -> None:
    file = disk.open(path, create=True)
    for _ in range(pieces):
        file.append(b"piece")


def read_twice(disk: Disk, path: str, size: int) -> float:
    """Read a file twice; return the duration in seconds."""
    file = disk.open(path)
    began = time.monotonic()
    for _ in range(2):
        file.read(0, size)
    return time.monotonic() - began


def policy() -> int:
    """The kernel's scheduling policy for this process."""
    return os.sched_getscheduler(0)


def niceness() -> int:
    return os.nice(0)


def wait_for_file(path: str) -> str:
    """Return once such a file exists."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return "seen"


def end_process() -> None:
    os._exit(7)
