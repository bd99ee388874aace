"""What every store promises: versions, transactions that are whole or nothing, and consistent lists."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.cluster.store import ABSENT, Check, Store, Unavailable, Write
from tailrace.errors import StorageError
from tailrace.stores.memory import MemoryStore
from tailrace.stores.sqlite import SqliteStore

Run = Callable[[Callable[[Store], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a coroutine over a new store."""

    def with_store(test: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
        async def work() -> None:
            store: Store = MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "store.sqlite"))
            try:
                await test(store)
            finally:
                await store.close()

        asyncio.run(work())

    return with_store


async def put(store: Store, key: str, value: bytes) -> int:
    """Write a key whatever it holds, and return its version."""
    assert await store.txn([], [Write(key, value)])
    entry = await store.get(key)
    assert entry is not None
    return entry.version


def test_what_is_written_is_read_back_with_a_version(run: Run) -> None:
    async def test(store: Store) -> None:
        assert await store.get("/a") is None
        assert await store.txn([Check("/a", ABSENT)], [Write("/a", b"\x00\xff value")])
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.key, entry.value) == ("/a", b"\x00\xff value")
        assert entry.version != ABSENT

    run(test)


def test_every_write_gives_a_version_that_the_key_never_had(run: Run) -> None:
    async def test(store: Store) -> None:
        versions = [await put(store, "/a", b"same") for _ in range(5)]
        assert await store.txn([], [Write("/a", None)])
        versions += [await put(store, "/a", b"same") for _ in range(5)]
        assert len(dict.fromkeys(versions)) == 10
        assert versions == sorted(versions)

    run(test)


def test_a_check_that_fails_leaves_everything_as_it_was(run: Run) -> None:
    async def test(store: Store) -> None:
        version = await put(store, "/a", b"1")
        _, revision = await store.list("/")
        for check in (Check("/a", ABSENT), Check("/a", version + 1), Check("/b", version)):
            assert not await store.txn([Check("/a", version), check], [Write("/a", b"2"), Write("/b", b"2")])
        entries, after = await store.list("/")
        assert [(entry.key, entry.value, entry.version) for entry in entries] == [("/a", b"1", version)]
        assert after == revision

    run(test)


def test_all_writes_of_a_transaction_are_seen_together(run: Run) -> None:
    async def test(store: Store) -> None:
        await put(store, "/old", b"x")
        assert await store.txn([], [Write("/a", b"1"), Write("/b", b"2"), Write("/old", None), Write("/none", None)])
        entries, _ = await store.list("/")
        assert [(entry.key, entry.value) for entry in entries] == [("/a", b"1"), ("/b", b"2")]

    run(test)


def test_of_two_who_check_the_same_version_one_wins(run: Run) -> None:
    async def test(store: Store) -> None:
        version = await put(store, "/counter", b"0")
        results = await asyncio.gather(
            *(store.txn([Check("/counter", version)], [Write("/counter", b"%d" % me)]) for me in range(10))
        )
        assert sorted(results) == [False] * 9 + [True]
        entry = await store.get("/counter")
        assert entry is not None
        assert entry.value == b"%d" % results.index(True)

    run(test)


def test_a_list_has_what_is_below_a_directory_and_nothing_beside_it(run: Run) -> None:
    async def test(store: Store) -> None:
        keys = [
            "/topics/b",
            "/topics/a",
            "/topics/a/deep",
            "/topics",
            "/topics0",
            "/topics-x",
            "/topicsa/b",
            "/z/\u00e9",
        ]
        for key in keys:
            await put(store, key, key.encode())
        for directory in ("/topics", "/topics/"):
            entries, _ = await store.list(directory)
            assert [entry.key for entry in entries] == ["/topics/a", "/topics/a/deep", "/topics/b"]
            assert all(entry.value == entry.key.encode() for entry in entries)
        assert [entry.key for entry in (await store.list("/z"))[0]] == ["/z/\u00e9"]
        assert (await store.list("/nothing"))[0] == []

    run(test)


def test_the_revision_of_a_list_grows_with_every_transaction(run: Run) -> None:
    async def test(store: Store) -> None:
        _, before = await store.list("/")
        version = await put(store, "/a", b"1")
        _, after = await store.list("/")
        assert after > before
        assert version <= after

    run(test)


def test_an_empty_value_is_not_an_absent_one(run: Run) -> None:
    async def test(store: Store) -> None:
        version = await put(store, "/a", b"")
        assert not await store.txn([Check("/a", ABSENT)], [])
        assert await store.txn([Check("/a", version)], [])

    run(test)


# --- what the file of a SQLite store adds


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path))
    try:
        yield store
    finally:
        await store.close()


def test_a_reopened_file_has_everything_and_goes_on_counting(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "store") as store:
            version = await put(store, "/a", b"1")
            await put(store, "/gone", b"1")
            await store.txn([], [Write("/gone", None)])
            _, revision = await store.list("/")
        async with opened(tmp_path / "store") as store:
            entries, again = await store.list("/")
            assert [(entry.key, entry.value, entry.version) for entry in entries] == [("/a", b"1", version)]
            assert again == revision
            assert await put(store, "/gone", b"2") > revision

    asyncio.run(test())


def test_a_file_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"

    async def make() -> None:
        async with opened(path) as store:
            await put(store, "/a", b"1")

    asyncio.run(make())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(StorageError, match="format 2"):
        SqliteStore(str(path))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT key FROM entries").fetchall() == [("/a",)]
    connection.close()


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
            version = await put(store, "/a", b"1")
            other = sqlite3.connect(tmp_path / "store")
            store._connection.execute("PRAGMA busy_timeout=1")
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable):
                await store.txn([Check("/a", version)], [Write("/a", b"2")])
            other.rollback()
            other.close()
            assert await store.txn([Check("/a", version)], [Write("/a", b"3")])

    asyncio.run(test())
