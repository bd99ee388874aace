"""A store in memory: a key space that lives as long as its owner, and a client for each broker.

It has the port's semantics in their simplest form: `MemorySpace` changes in functions without `await`, so simulations
and tests can put anything between it and a broker. Sessions expire by the space's clock; without a clock they end only
when closed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from tailrace.cluster.store import ABSENT, Check, Entry, Session, Unavailable, Write
from tailrace.runtime.clock import Clock
from tailrace.stores.sessions import RENEWALS_PER_TTL, HeldSession, Leases
from tailrace.stores.transactions import refuse_impossible
from tailrace.stores.watching import Changed, DirectoryWatch, Watches, directory_of


class MemorySpace:
    """Keys, sessions and watches shared by several clients."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock
        #: Called with every change, in order.
        self._feeds: list[Callable[[Changed], None]] = []
        self._entries: dict[str, Entry] = {}
        #: The session of each key that has one, and the keys of each live session.
        self._owners: dict[str, int] = {}
        self._sessions: dict[int, dict[str, None]] = {}
        self._leases = None if clock is None else Leases(clock, self.end_session)
        self._revision = 0
        self._sessions_made = 0

    def get(self, key: str) -> Entry | None:
        """The entry of a key, or None."""
        return self._entries.get(key)

    def list(self, directory: str) -> Sequence[Entry]:
        """The entries directly in a directory, sorted by key."""
        directory = directory.rstrip("/")
        return [self._entries[key] for key in sorted(self._entries) if directory_of(key) == directory]

    def txn(self, checks: Sequence[Check], writes: Sequence[tuple[str, bytes | None, int]]) -> Sequence[int] | None:
        """Apply writes of (key, value, session id or 0) if all checks hold; LookupError if a session has ended."""
        for _, value, session_id in writes:
            if value is not None and session_id and session_id not in self._sessions:
                raise LookupError(f"session {session_id} has ended")
        for check in checks:
            entry = self._entries.get(check.key)
            if (entry.version if entry else ABSENT) != check.version:
                return None
        self._revision += 1
        changed: dict[str, Entry | None] = {}
        versions = []
        for key, value, session_id in writes:
            self._disown(key)
            if value is None:
                if self._entries.pop(key, None) is not None:
                    changed[key] = None
                versions.append(ABSENT)
                continue
            entry = changed[key] = self._entries[key] = Entry(key, value, self._revision)
            if session_id:
                self._owners[key] = session_id
                self._sessions[session_id][key] = None
            versions.append(entry.version)
        self._publish(changed)
        return versions

    def _disown(self, key: str) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            del self._sessions[owner][key]

    def follow(self, feed: Callable[[Changed], None]) -> None:
        """Call a function with every change from now on, as part of the change."""
        self._feeds.append(feed)

    def unfollow(self, feed: Callable[[Changed], None]) -> None:
        if feed in self._feeds:
            self._feeds.remove(feed)

    def open_session(self, ttl_ms: int) -> int:
        """Open a session, which must be renewed if the space has a clock."""
        self._sessions_made += 1
        self._sessions[self._sessions_made] = {}
        if self._leases is not None:
            self._leases.grant(self._sessions_made, ttl_ms)
        return self._sessions_made

    def renew_session(self, session_id: int) -> bool:
        """Extend a session; False if it has ended."""
        return session_id in self._sessions and (self._leases is None or self._leases.renew(session_id))

    def end_session(self, session_id: int) -> None:
        """End a session and delete its keys."""
        if self._leases is not None:
            self._leases.end(session_id)
        keys = self._sessions.pop(session_id, {})
        for key in keys:
            del self._owners[key]
            del self._entries[key]
        if keys:
            self._revision += 1
            self._publish(dict.fromkeys(keys))

    def _publish(self, changed: Changed) -> None:
        for feed in list(self._feeds):
            feed(changed)


class MemorySession(HeldSession):
    """A session of a client in the same process, renewed by a timer."""

    def __init__(self, space: MemorySpace, ttl_ms: int) -> None:
        clock = space.clock
        super().__init__(clock, math.inf if clock is None else clock.monotonic() + ttl_ms / 1000)
        self.session_id = space.open_session(ttl_ms)
        self._space = space
        self._ttl = ttl_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        if clock is not None:
            self._renew_later()

    def _renew_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._ttl / RENEWALS_PER_TTL, self._renew)

    def _renew(self) -> None:
        clock = self._space.clock
        if clock is None or self.is_lost or not self._space.renew_session(self.session_id):
            self.lose()
            return
        self.extend(clock.monotonic() + self._ttl)
        self._renew_later()

    def abandon(self) -> None:
        """Stop renewals, as when the process has died."""
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        self.abandon()
        self._space.end_session(self.session_id)
        self.lose()


class MemoryStore:
    """One client of a space, or of a new space of its own."""

    def __init__(self, space: MemorySpace | None = None) -> None:
        self.space = MemorySpace() if space is None else space
        self._sessions: list[MemorySession] = []
        self._watches = Watches()
        self._feed = self._watches.publish
        self._is_closed = False
        self.space.follow(self._feed)

    async def get(self, key: str) -> Entry | None:
        self._refuse_closed()
        return self.space.get(key)

    async def list(self, directory: str) -> Sequence[Entry]:
        self._refuse_closed()
        return self.space.list(directory)

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        self._refuse_closed()
        refuse_impossible(checks, writes)
        try:
            return self.space.txn(checks, [(write.key, write.value, _id_of(write.session)) for write in writes])
        except LookupError as error:
            raise Unavailable(f"write refused: {error}") from None

    def watch(self, directory: str) -> DirectoryWatch:
        watch = self._watches.add(directory)
        if self._is_closed:
            watch.end()
        else:
            watch.begin(self.space.list(directory))
        return watch

    async def open_session(self, ttl_ms: int) -> MemorySession:
        self._refuse_closed()
        session = MemorySession(self.space, ttl_ms)
        self._sessions = [held for held in self._sessions if not held.is_lost] + [session]
        return session

    def abandon(self) -> None:
        """Drop everything silently, like the end of a process: sessions are left to expire."""
        self._is_closed = True
        self.space.unfollow(self._feed)
        self._watches.end()
        for session in self._sessions:
            session.abandon()

    async def close(self) -> None:
        self.abandon()
        for session in self._sessions:
            await session.close()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise Unavailable("the memory store is closed")


def _id_of(session: Session | None) -> int:
    """The number of a session in its space, or 0 for none; LookupError if it has ended."""
    if session is None:
        return 0
    if not isinstance(session, MemorySession):
        raise TypeError(f"{session!r} is not a session of this store")
    if session.is_lost:
        raise LookupError(f"session {session.session_id} has ended")
    return session.session_id
