"""The store port: a small, strongly consistent key space that holds the cluster's metadata.

Keys are '/'-separated paths. Versions are opaque numbers that only grow while a key is there; 0 means absent. A
transaction applies all its writes or none, and only if every check still holds. Keys may belong to a session, and are
gone when it ends. Whoever watches a directory sees every key's latest state, in order, whatever happens to the
connection meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from tailrace.errors import TailraceError

ABSENT = 0
#: No store takes more checks and writes in one transaction.
MAX_OPERATIONS = 100
#: No store takes more bytes of keys and values in one transaction: ZooKeeper's limit is 1 MiB for all of a request.
MAX_TRANSACTION_BYTES = 900_000


class Unavailable(TailraceError):
    """The store did not answer in time; a write may or may not have been applied."""


class Refused(Unavailable):
    """The store refuses and would do so again: nothing was done, and somebody has to mend the reason first."""


class TooLarge(Refused):
    """A transaction has more bytes than the store takes; nothing was done."""


class Unreadable(Refused):
    """The store holds a value, or gave an answer, that this software cannot read."""


class Entry(NamedTuple):
    """One key with its value and the version to check it by."""

    key: str
    value: bytes
    version: int


class Session(Protocol):
    """A lease: the keys that belong to it vanish when its holder is silent for longer than its time to live."""

    @property
    def deadline(self) -> float:
        """Until when it is held for sure, by the broker's monotonic clock; infinite where nobody can take it away."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, or its deadline has passed: it never comes back then, and another must be opened."""
        ...

    async def wait_until_lost(self) -> None: ...

    async def close(self) -> None:
        """End it: its keys are gone at once, or within its time to live where the store cannot be reached."""
        ...


class Check(NamedTuple):
    """A condition of a transaction: the key still has this version."""

    key: str
    version: int


class Write(NamedTuple):
    """A change in a transaction: a new value, or None to delete the key."""

    key: str
    value: bytes | None
    #: The session that the key belongs to from now on; None: it stays until it is deleted.
    session: Session | None = None


class Changes(NamedTuple):
    """What is new in a watched directory."""

    entries: Sequence[Entry]
    #: Keys that are no longer there.
    removed: Sequence[str]
    #: Whether `entries` is all there is: the first of a watch, and after a gap that could not be filled.
    is_complete: bool


class Store(Protocol):
    """Where metadata outlives the process.

    Every call raises `Unavailable` where its outcome is unknown, or one of its kinds, whatever a server answers.
    """

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, directory: str) -> Sequence[Entry]:
        """Every entry directly in a directory, sorted by key, each as it was at a moment during the call."""
        ...

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        """Apply the writes if all checks hold: the version each key got (0 for deleted ones); None if one does not.

        A key that belonged to another session, or to none, belongs to the session of the write afterwards. A write
        with a session that has ended is Unavailable, and not applied. More than `MAX_TRANSACTION_BYTES` are TooLarge.
        """
        ...

    def watch(self, directory: str) -> AsyncIterator[Changes]:
        """Follow the entries directly in a directory: all of them first, then what changes, without end.

        States that were replaced quickly may be skipped, never reordered. It never fails: while the store cannot be
        reached there is nothing new.
        """
        ...

    async def open_session(self, ttl_ms: int) -> Session:
        """Begin a session that is renewed by itself until it is closed or lost."""
        ...

    async def close(self) -> None:
        """End every watch and session."""
        ...
