"""The store port: a small, strongly consistent key space that holds the cluster's metadata.

Keys are '/'-separated paths. Versions are opaque numbers; 0 means absent. A transaction applies all its writes
or none, and only if every check still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tailrace.errors import TailraceError

ABSENT = 0


class Unavailable(TailraceError):
    """The store did not answer in time; a write may or may not have been applied."""


class Entry(NamedTuple):
    """One key with its value and the version to check it by."""

    key: str
    value: bytes
    version: int


class Check(NamedTuple):
    """A condition of a transaction: the key still has this version."""

    key: str
    version: int


class Write(NamedTuple):
    """A change in a transaction: a new value, or None to delete the key."""

    key: str
    value: bytes | None


class Store(Protocol):
    """Where metadata outlives the process. Every call raises `Unavailable` where its outcome is unknown."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, directory: str) -> tuple[Sequence[Entry], int]:
        """Every entry below a directory, sorted by key, and the revision of the store that they belong to."""
        ...

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        """Apply the writes if all checks hold; False, and nothing written, if one does not."""
        ...

    async def close(self) -> None: ...
