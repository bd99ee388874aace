"""The names in a log directory: of partitions, and of directories that were deleted or set aside.

A name says what a directory may hold; its content must agree.
"""

from __future__ import annotations

import re
from random import Random

from tailrace.model import TopicPartition

DELETED_DIRECTORY_SUFFIX = "-delete"
STRAY_DIRECTORY_SUFFIX = "-stray"
_DELETED_DIRECTORY = re.compile(rf"\.[0-9a-f]{{32}}{DELETED_DIRECTORY_SUFFIX}$")
_STRAY_DIRECTORY = re.compile(rf"\.[0-9a-f]{{32}}{STRAY_DIRECTORY_SUFFIX}$")
_MAX_FILE_NAME_BYTES = 255


def partition_named(name: str) -> TopicPartition | None:
    """The partition that a directory of this name may hold; None if this is no partition's name."""
    topic, separator, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if separator and topic and number.isdecimal() else None


def is_deleted(name: str) -> bool:
    """Whether a directory of this name belongs to a deleted topic, to be removed by the next start at the latest."""
    return _DELETED_DIRECTORY.search(name) is not None


def is_stray(name: str) -> bool:
    """Whether a directory of this name was set aside because no topic owns it."""
    return _STRAY_DIRECTORY.search(name) is not None


def unused_name(name: str, suffix: str, random: Random) -> str:
    """A unique name to rename a directory to."""
    ending = f".{random.getrandbits(128):032x}{suffix}"
    return f"{name[: _MAX_FILE_NAME_BYTES - len(ending)]}{ending}"
