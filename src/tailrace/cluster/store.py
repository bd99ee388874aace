"""The store port: a small, strongly consistent key space for the cluster's metadata.

Keys are '/'-separated paths. Versions are opaque numbers that only grow while a key exists; 0 means absent. A
transaction applies all its writes or none, and only if every check holds. A key may belong to a session, and is removed
when the session ends. A watch of a directory delivers every key's latest state, in order, even across reconnections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from tailrace.errors import TailraceError

ABSENT = 0
#: The maximum number of checks and writes in one transaction, on every store.
MAX_OPERATIONS = 100
#: The maximum size of keys and values in one transaction, on every store: ZooKeeper limits a whole request to 1 MiB.
MAX_TRANSACTION_BYTES = 900_000


class Unavailable(TailraceError):
    """The store did not answer in time; a write may or may not have been applied."""


class Refused(Unavailable):
    """The store refuses, and would refuse a retry: nothing was done, and the cause must be fixed first."""


class TooLarge(Refused):
    """A transaction is larger than the store accepts; nothing was done."""


class Unreadable(Refused):
    """The store has a value, or gave an answer, that this release cannot read."""


class Entry(NamedTuple):
    """One key with its value and its version for checks."""

    key: str
    value: bytes
    version: int


class Session(Protocol):
    """A lease: its keys are removed when its holder is silent for longer than the time to live."""

    @property
    def deadline(self) -> float:
        """The time by the broker's monotonic clock until which it certainly holds; infinite if it cannot expire."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it has ended or its deadline has passed. It never comes back; open another one."""
        ...

    async def wait_until_lost(self) -> None: ...

    async def close(self) -> None:
        """End the session: its keys are removed at once, or within its time to live if the store is unreachable."""
        ...


class Check(NamedTuple):
    """A condition of a transaction: the key still has this version."""

    key: str
    version: int


class Write(NamedTuple):
    """A change in a transaction: a new value, or None to delete the key."""

    key: str
    value: bytes | None
    #: The session that owns the key from now on; None: the key is permanent.
    session: Session | None = None


class Changes(NamedTuple):
    """The changes in a watched directory."""

    entries: Sequence[Entry]
    #: Keys that were removed.
    removed: Sequence[str]
    #: Whether `entries` is the whole directory: at the start of a watch, and after a gap that could not be filled.
    is_complete: bool


class Store(Protocol):
    """Where metadata outlives the process.

    Every call raises `Unavailable` if its outcome is unknown, or a subclass of it; servers' own errors never escape.
    """

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, directory: str) -> Sequence[Entry]:
        """The entries directly in a directory, sorted by key, each as of a moment during the call."""
        ...

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        """Apply the writes if all checks hold; returns the new versions (0 for deleted keys), or None if a check fails.

        A write's session replaces any earlier session of its key. A write with an expired session raises Unavailable
        and is not applied. More than `MAX_TRANSACTION_BYTES` raise TooLarge.
        """
        ...

    def watch(self, directory: str) -> AsyncIterator[Changes]:
        """Follow the entries directly in a directory: first all of them, then changes, without end.

        States that are replaced quickly may be skipped, but never reordered. It never fails: while the store is
        unreachable there are no changes.
        """
        ...

    async def open_session(self, ttl_ms: int) -> Session:
        """Begin a session that is renewed automatically until it is closed or lost."""
        ...

    async def close(self) -> None:
        """End all watches and sessions."""
        ...
