"""A store in one SQLite file, owned by one process: a single broker, or the supervisor of a local cluster.

Every transaction is synced before it returns. Calls run in order in the store's own thread. Watches receive changes in
the same order, even if the caller has gone.

The process that owns the file cannot lose a session, so its deadline is infinite. A key whose session is not alive does
not exist. After a start no session is alive, unless the owner serves the file to others and asks to keep the sessions
that were.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from tailrace.cluster.store import ABSENT, Check, Entry, Session, Unavailable, Write
from tailrace.errors import StorageError
from tailrace.stores.sessions import HeldSession
from tailrace.stores.transactions import refuse_impossible
from tailrace.stores.watching import DirectoryWatch, Watches

logger = logging.getLogger("tailrace.stores")

T = TypeVar("T")

_FORMAT_VERSION = 2
_NO_SESSION = 0
_BUSY_SECONDS = 5.0


class _Row(NamedTuple):
    key: str
    value: bytes | None
    session_id: int


class SqliteSession(HeldSession):
    """A session of the process that owns the file."""

    def __init__(self, store: SqliteStore, session_id: int, ttl_ms: int) -> None:
        super().__init__(None, math.inf)
        self._store = store
        self.session_id = session_id
        self.ttl_ms = ttl_ms

    async def close(self) -> None:
        if not self.is_lost:
            self.lose()
            await self._store.end_session(self)


class SqliteStore:
    """Keys and values in a table; the revision counts transactions and sessions."""

    def __init__(self, path: str, *, keeps_sessions: bool = False) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "tailrace-store")
        self._watches = Watches()
        #: Live sessions. Changed only in the store's thread, or before it runs.
        self._sessions: dict[int, SqliteSession] = {}
        self._keeps_sessions = keeps_sessions
        self._is_closed = False
        try:
            self._connection = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=_BUSY_SECONDS
            )
            try:
                self._prepare()
                if keeps_sessions:
                    self._keep_sessions()
                else:
                    self._drop_dead_sessions()
            except (sqlite3.Error, StorageError):
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise StorageError(f"cannot open the metadata store {path}: {error}") from error

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        (version,) = run("PRAGMA user_version").fetchone()
        if version > _FORMAT_VERSION:
            raise StorageError(
                f"the metadata store {self._path} has format {version}, but this release supports only up to "
                f"{_FORMAT_VERSION}: start the newer version of tailrace that wrote it"
            )
        if version == _FORMAT_VERSION:  # nothing to write, so a full disk does not prevent a start
            return
        run("BEGIN IMMEDIATE")
        run("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)")
        run("CREATE TABLE IF NOT EXISTS revision (number INTEGER NOT NULL)")
        if run("SELECT count(*) FROM revision").fetchone() == (0,):
            run("INSERT INTO revision VALUES (0)")
        # Format 2 added sessions.
        run(f"ALTER TABLE entries ADD COLUMN session INTEGER NOT NULL DEFAULT {_NO_SESSION}")
        run(f"CREATE INDEX entries_of_sessions ON entries (session) WHERE session != {_NO_SESSION}")
        run("CREATE TABLE sessions (id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL)")
        run(f"PRAGMA user_version={_FORMAT_VERSION}")
        run("COMMIT")

    def _keep_sessions(self) -> None:
        for session_id, ttl_ms in self._connection.execute("SELECT id, ttl_ms FROM sessions").fetchall():
            self._sessions[session_id] = SqliteSession(self, session_id, ttl_ms)

    def _drop_dead_sessions(self) -> None:
        run = self._connection.execute
        if run("SELECT count(*) FROM sessions").fetchone() == (0,):
            return
        try:
            run("BEGIN IMMEDIATE")
            run(f"DELETE FROM entries WHERE session != {_NO_SESSION}")
            run("DELETE FROM sessions")
            run("COMMIT")
        except sqlite3.OperationalError as error:
            # Their keys are invisible anyway, so a full disk need not prevent the start.
            logger.warning("Cannot remove keys of ended sessions from the metadata store %s: %s", self._path, error)
            if self._connection.in_transaction:
                run("ROLLBACK")

    async def _call(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise Unavailable(f"metadata store {self._path} is closed")
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise Unavailable(f"metadata store {self._path}: {error}") from error

    # --- reading

    async def get(self, key: str) -> Entry | None:
        return await self._call(lambda: self._get(key))

    def _get(self, key: str) -> Entry | None:
        row = self._connection.execute(
            "SELECT key, value, version, session FROM entries WHERE key = ?", (key,)
        ).fetchone()
        return Entry(*row[:3]) if row and self._is_alive(row[3]) else None

    def _is_alive(self, session_id: int) -> bool:
        return session_id == _NO_SESSION or session_id in self._sessions

    async def list(self, directory: str) -> Sequence[Entry]:
        return await self._call(lambda: self._list(directory.rstrip("/")))

    def _list(self, directory: str) -> Sequence[Entry]:
        # '0' is the character after '/': every key below the directory sorts between the two.
        rows = self._connection.execute(
            "SELECT key, value, version, session FROM entries "
            "WHERE key > ? AND key < ? AND instr(substr(key, ?), '/') = 0 ORDER BY key",
            (directory + "/", directory + "0", len(directory) + 2),
        ).fetchall()
        return [Entry(*row[:3]) for row in rows if self._is_alive(row[3])]

    def watch(self, directory: str) -> DirectoryWatch:
        watch = self._watches.add(directory)
        if self._is_closed:
            watch.end()
            return watch
        loop = asyncio.get_running_loop()

        def begin() -> None:
            try:
                entries = self._list(watch.directory)
            except sqlite3.Error as error:
                logger.error("Cannot read the metadata store %s, retrying: %s", self._path, error)
                loop.call_soon_threadsafe(loop.call_later, _BUSY_SECONDS, submit)
                return
            loop.call_soon_threadsafe(watch.begin, entries)

        def submit() -> None:
            if not self._is_closed:
                self._thread.submit(begin)

        submit()
        return watch

    # --- changing

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        refuse_impossible(checks, writes)
        rows = [_Row(write.key, write.value, _id_of(write.session)) for write in writes]
        loop = asyncio.get_running_loop()
        return await self._call(lambda: self._txn(loop, checks, rows))

    def _txn(
        self, loop: asyncio.AbstractEventLoop, checks: Sequence[Check], rows: Sequence[_Row]
    ) -> Sequence[int] | None:
        for row in rows:
            if not self._is_alive(row.session_id):
                raise Unavailable(f"write refused: session {row.session_id} has ended")
        run = self._connection.execute
        changed: dict[str, Entry | None] = {}
        versions = []
        run("BEGIN IMMEDIATE")
        try:
            for check in checks:
                entry = self._get(check.key)
                if (entry.version if entry else ABSENT) != check.version:
                    run("ROLLBACK")
                    return None
            revision = self._next_revision()
            for row in rows:
                if row.value is None:
                    if run("DELETE FROM entries WHERE key = ?", (row.key,)).rowcount > 0:
                        changed[row.key] = None
                    versions.append(ABSENT)
                else:
                    run(
                        "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
                        "SET value = excluded.value, version = excluded.version, session = excluded.session",
                        (row.key, row.value, revision, row.session_id),
                    )
                    changed[row.key] = Entry(row.key, row.value, revision)
                    versions.append(revision)
            run("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        loop.call_soon_threadsafe(self._watches.publish, changed)
        return versions

    def _next_revision(self) -> int:
        (revision,) = self._connection.execute("UPDATE revision SET number = number + 1 RETURNING number").fetchone()
        return int(revision)

    # --- sessions

    @property
    def sessions(self) -> Sequence[SqliteSession]:
        """The live sessions, oldest first."""
        return list(self._sessions.values())

    async def open_session(self, ttl_ms: int) -> SqliteSession:
        return await self._call(lambda: self._open_session(ttl_ms))

    def _open_session(self, ttl_ms: int) -> SqliteSession:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            session = SqliteSession(self, self._next_revision(), ttl_ms)
            run("INSERT INTO sessions VALUES (?, ?)", (session.session_id, ttl_ms))
            run("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        self._sessions[session.session_id] = session
        return session

    async def end_session(self, session: SqliteSession) -> None:
        """End a session and delete its keys."""
        loop = asyncio.get_running_loop()
        try:
            await self._in_thread(lambda: self._end_session(loop, session.session_id))
        except Unavailable as error:
            # Its keys are already invisible; they leave the file with the next start at the latest.
            logger.warning("Cannot remove the keys of an ended session: %s", error)

    def _end_session(self, loop: asyncio.AbstractEventLoop, session_id: int) -> None:
        run = self._connection.execute
        if self._sessions.pop(session_id, None) is None:
            return
        keys = [key for (key,) in run("SELECT key FROM entries WHERE session = ?", (session_id,)).fetchall()]
        loop.call_soon_threadsafe(self._watches.publish, dict.fromkeys(keys))
        run("BEGIN IMMEDIATE")
        try:
            run("DELETE FROM entries WHERE session = ?", (session_id,))
            run("DELETE FROM sessions WHERE id = ?", (session_id,))
            run("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise

    async def close(self) -> None:
        """End every watch and session, and close the file; sessions to be kept stay in it."""
        if self._is_closed:
            return
        self._is_closed = True
        for session in self.sessions:
            if self._keeps_sessions:
                session.lose()
            else:
                await session.close()
        self._watches.end()
        await self._in_thread(self._connection.close)
        self._thread.shutdown(wait=False)


def _id_of(session: Session | None) -> int:
    if session is None:
        return _NO_SESSION
    if not isinstance(session, SqliteSession):
        raise TypeError(f"{session!r} is not a session of this store")
    if session.is_lost:
        raise Unavailable(f"write refused: session {session.session_id} has ended")
    return session.session_id
