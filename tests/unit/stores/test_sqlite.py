"""What the file of a SQLite store adds to the contract: it is kept, upgraded, and owned by one process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.cluster.store import ABSENT, Check, Entry, Store, Unavailable, Write
from tailrace.errors import StorageError
from tailrace.stores.sqlite import SqliteStore


@asynccontextmanager
async def opened(path: Path, *, keeps_sessions: bool = False) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), keeps_sessions=keeps_sessions)
    try:
        yield store
    finally:
        await store.close()


async def put(store: Store, key: str, value: bytes) -> int:
    versions = await store.txn([], [Write(key, value)])
    assert versions is not None
    return versions[0]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_reopened_file_has_everything_and_goes_on_counting(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "store") as store:
            version = await put(store, "/things/a", b"1")
            gone = await put(store, "/things/gone", b"1")
            await store.txn([], [Write("/things/gone", None)])
        async with opened(tmp_path / "store") as store:
            assert list(await store.list("/things")) == [Entry("/things/a", b"1", version)]
            assert await put(store, "/things/gone", b"2") > gone
            assert [entry.key for entry in await store.list("/things")] == ["/things/a", "/things/gone"]

    run(test())


def test_a_file_of_format_1_is_upgraded_with_all_it_has(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)")
        connection.execute("CREATE TABLE revision (number INTEGER NOT NULL)")
        connection.execute("INSERT INTO revision VALUES (41)")
        connection.execute("INSERT INTO entries VALUES ('/topics/a', x'00ff', 7), ('/cluster/id', x'61', 1)")
        connection.execute("PRAGMA user_version=1")
        connection.commit()

    async def test() -> None:
        for _ in range(2):
            async with opened(path) as store:
                assert await store.get("/topics/a") == Entry("/topics/a", b"\x00\xff", 7)
                assert await store.get("/cluster/id") == Entry("/cluster/id", b"a", 1)
        async with opened(path) as store:
            assert await put(store, "/topics/a", b"2") > 41
            session = await store.open_session(1000)
            assert await store.txn([], [Write("/brokers/1", b"", session)]) is not None

    run(test())


def test_a_file_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"

    async def make() -> None:
        async with opened(path) as store:
            await put(store, "/things/a", b"1")

    run(make())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=3")
    with pytest.raises(StorageError, match="format 3"):
        SqliteStore(str(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT key FROM entries").fetchall() == [("/things/a",)]


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"this is no database at all, but long enough to look at" * 20)
    with pytest.raises(StorageError, match="cannot open the metadata store"):
        SqliteStore(str(path))
    with pytest.raises(StorageError, match="cannot open the metadata store"):
        SqliteStore(str(tmp_path / "no" / "such" / "directory"))


def test_a_store_that_cannot_be_used_is_unavailable_and_works_again_afterwards(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "store") as store:
            version = await put(store, "/things/a", b"1")
            session = await store.open_session(1000)
            await store.txn([], [Write("/things/mine", b"1", session)])
            store._connection.execute("PRAGMA busy_timeout=1")
            with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(Unavailable):
                    await store.txn([Check("/things/a", version)], [Write("/things/a", b"2")])
                with pytest.raises(Unavailable):
                    await store.open_session(1000)
                # The end of a session needs no disk: its keys are gone for everybody here.
                await session.close()
                assert [entry.key for entry in await store.list("/things")] == ["/things/a"]
                other.execute("ROLLBACK")
            assert await store.txn([Check("/things/a", version)], [Write("/things/a", b"3")]) is not None
            assert await store.txn([Check("/things/mine", ABSENT)], [Write("/things/mine", b"4")]) is not None

    run(test())


def test_a_deadline_of_the_only_owner_never_comes(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "store") as store:
            session = await store.open_session(1)
            assert session.deadline == float("inf")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await session.wait_until_lost()
            await session.close()
            assert session.deadline < 0
            await session.wait_until_lost()

    run(test())


def test_keys_of_sessions_of_a_process_that_died_are_not_there_for_the_next_one(tmp_path: Path) -> None:
    async def test() -> None:
        killed = SqliteStore(str(tmp_path / "store"))
        session = await killed.open_session(1000)
        await killed.txn([], [Write("/things/mine", b"1", session), Write("/things/stays", b"1")])
        killed._connection.close()
        async with opened(tmp_path / "store") as store:
            assert [entry.key for entry in await store.list("/things")] == ["/things/stays"]
            assert await store.get("/things/mine") is None
            changes = await anext(store.watch("/things"))
            assert [entry.key for entry in changes.entries] == ["/things/stays"]
            following = await store.open_session(1000)
            assert following.session_id > session.session_id
            writes = [Write("/things/mine", b"2", following)]
            assert await store.txn([Check("/things/mine", ABSENT)], writes) is not None
        with closing(sqlite3.connect(tmp_path / "store")) as connection:
            assert connection.execute("SELECT key FROM entries").fetchall() == [("/things/stays",)]
            assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)

    run(test())


def test_sessions_that_are_kept_are_alive_in_the_next_process(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "store", keeps_sessions=True) as store:
            session = await store.open_session(1234)
            await store.txn([], [Write("/things/mine", b"1", session)])
        assert session.is_lost
        async with opened(tmp_path / "store", keeps_sessions=True) as store:
            (kept,) = store.sessions
            assert (kept.session_id, kept.ttl_ms, kept.is_lost) == (session.session_id, 1234, False)
            assert [entry.key for entry in await store.list("/things")] == ["/things/mine"]
            assert await store.txn([], [Write("/things/second", b"1", kept)]) is not None
            await kept.close()
            assert list(await store.list("/things")) == []
            assert store.sessions == []

    run(test())


def test_a_change_is_told_to_watches_also_where_its_caller_has_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "store") as store:
            watch = store.watch("/things")
            assert (await anext(watch)).is_complete
            change = asyncio.ensure_future(store.txn([], [Write("/things/a", b"1")]))
            await asyncio.sleep(0)  # handed to the store's thread
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
            following = await put(store, "/things/b", b"2")
            seen: dict[str, Entry] = {}
            while "/things/b" not in seen:
                seen.update({entry.key: entry for entry in (await anext(watch)).entries})
            stored = await store.get("/things/a")
            assert seen.get("/things/a") == stored
            assert stored is None or stored.version < following

    run(test())


def test_keys_of_a_dead_session_that_cannot_be_removed_keep_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.stores.sqlite._BUSY_SECONDS", 0.01)

    async def test() -> None:
        killed = SqliteStore(str(tmp_path / "store"))
        session = await killed.open_session(1000)
        await killed.txn([], [Write("/things/mine", b"1", session), Write("/things/stays", b"1")])
        killed._connection.close()
        with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # refuses writes, as a full disk does
            async with opened(tmp_path / "store") as store:
                assert [entry.key for entry in await store.list("/things")] == ["/things/stays"]
                assert await store.get("/things/mine") is None
                other.execute("ROLLBACK")
                assert await store.txn([Check("/things/mine", ABSENT)], [Write("/things/mine", b"2")]) is not None
        async with opened(tmp_path / "store") as store:
            assert [entry.value for entry in await store.list("/things")] == [b"2", b"1"]

    run(test())
