"""A store in one SQLite file, owned by one process: the default of a single broker.

Every transaction is synced before it returns. Calls run in a thread of the store's own, in order.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tailrace.cluster.store import ABSENT, Check, Entry, Unavailable, Write
from tailrace.errors import StorageError

T = TypeVar("T")

_FORMAT_VERSION = 1


class SqliteStore:
    """Keys and values in a table; the revision counts transactions."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "tailrace-store")
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5)
            try:
                self._prepare()
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
                f"the metadata store {self._path} has format {version}, this software knows {_FORMAT_VERSION}: "
                "start the newer version of tailrace that wrote it"
            )
        if version == _FORMAT_VERSION:  # nothing to write: a full disk must not keep a broker from starting
            return
        run("BEGIN IMMEDIATE")
        run("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)")
        run("CREATE TABLE IF NOT EXISTS revision (number INTEGER NOT NULL)")
        if run("SELECT count(*) FROM revision").fetchone() == (0,):
            run("INSERT INTO revision VALUES (0)")
        run(f"PRAGMA user_version={_FORMAT_VERSION}")
        run("COMMIT")

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise Unavailable(f"metadata store {self._path}: {error}") from error

    async def get(self, key: str) -> Entry | None:
        return await self._call(lambda: self._get(key))

    def _get(self, key: str) -> Entry | None:
        row = self._connection.execute("SELECT key, value, version FROM entries WHERE key = ?", (key,)).fetchone()
        return Entry(*row) if row else None

    async def list(self, directory: str) -> tuple[Sequence[Entry], int]:
        return await self._call(lambda: self._list(directory.rstrip("/")))

    def _list(self, directory: str) -> tuple[Sequence[Entry], int]:
        run = self._connection.execute
        run("BEGIN")
        try:
            # '0' is the character after '/': every key below the directory sorts between the two.
            rows = run(
                "SELECT key, value, version FROM entries WHERE key > ? AND key < ? ORDER BY key",
                (directory + "/", directory + "0"),
            ).fetchall()
            (revision,) = run("SELECT number FROM revision").fetchone()
        finally:
            run("COMMIT")
        return [Entry(*row) for row in rows], revision

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        return await self._call(lambda: self._txn(checks, writes))

    def _txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            for check in checks:
                entry = self._get(check.key)
                if (entry.version if entry else ABSENT) != check.version:
                    run("ROLLBACK")
                    return False
            (revision,) = run("UPDATE revision SET number = number + 1 RETURNING number").fetchone()
            for write in writes:
                if write.value is None:
                    run("DELETE FROM entries WHERE key = ?", (write.key,))
                else:
                    run(
                        "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
                        "SET value = excluded.value, version = excluded.version",
                        (write.key, write.value, revision),
                    )
            run("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        return True

    async def close(self) -> None:
        await self._call(self._connection.close)
        self._thread.shutdown(wait=False)
