"""What every store promises: versions, transactions whole or nothing, sessions, and watches that miss nothing."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import pytest

from tailrace.cluster.store import (
    ABSENT,
    MAX_OPERATIONS,
    MAX_TRANSACTION_BYTES,
    Check,
    Entry,
    Session,
    Store,
    TooLarge,
    Unavailable,
    Write,
)
from tests.contract.follower import Follower
from tests.contract.stores import Stores

LARGE_BYTES = 600_000
MANY_KEYS = 10_000


async def put(store: Store, key: str, value: bytes) -> int:
    """Write a key whatever it holds, and return its version."""
    versions = await store.txn([], [Write(key, value)])
    assert versions is not None
    (version,) = versions
    return version


async def entry_of(store: Store, key: str) -> Entry:
    entry = await store.get(key)
    assert entry is not None, f"{key} is not there"
    return entry


async def values_in(store: Store, directory: str) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in await store.list(directory)}


async def increment(store: Store, key: str) -> bool:
    """Try once to increment a key; return whether that succeeded."""
    entry = await store.get(key)
    count = int(entry.value) if entry else 0
    check = Check(key, entry.version if entry else ABSENT)
    return await store.txn([check], [Write(key, b"%d" % (count + 1))]) is not None


async def hold(stores: Stores, store: Store, key: str, ttl_ms: int) -> Session:
    """A session that has a key."""

    async def try_to_hold() -> Session:
        session = await store.open_session(ttl_ms)
        assert await store.txn([], [Write(key, b"1", session)]) is not None
        return session

    return await stores.patiently(try_to_hold)


async def answers_again(stores: Stores, store: Store) -> None:
    """Wait until a client that was cut off reaches the store."""

    async def answers() -> bool:
        try:
            await store.get("/things/any")
        except Unavailable:
            return False
        return True

    await stores.until(answers, "the store is reached again")


# --- keys, versions, transactions


def test_what_is_written_is_read_back_with_the_version_that_the_transaction_told(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        assert await store.get("/things/a") is None
        versions = await store.txn([Check("/things/a", ABSENT)], [Write("/things/a", b"\x00\xff value")])
        assert versions is not None
        assert await store.get("/things/a") == Entry("/things/a", b"\x00\xff value", versions[0])
        assert list(await store.list("/things")) == [Entry("/things/a", b"\x00\xff value", versions[0])]
        assert versions[0] != ABSENT

    stores.run(test())


def test_every_write_gives_a_key_a_higher_version(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        versions = [await put(store, "/things/a", b"same") for _ in range(10)]
        assert versions == sorted(dict.fromkeys(versions))
        for version in versions[:-1]:
            assert await store.txn([Check("/things/a", version)], [Write("/things/a", b"other")]) is None
        assert await store.txn([Check("/things/a", versions[-1])], [Write("/things/a", b"other")]) is not None

    stores.run(test())


def test_a_write_elsewhere_leaves_the_version_of_a_key_alone(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        version = await put(store, "/things/a", b"1")
        await put(store, "/things/b", b"1")
        await put(store, "/others/a", b"1")
        assert await entry_of(store, "/things/a") == Entry("/things/a", b"1", version)
        assert await store.txn([Check("/things/a", version)], []) is not None

    stores.run(test())


def test_a_check_that_fails_leaves_everything_as_it_was(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        version = await put(store, "/things/a", b"1")
        for check in (Check("/things/a", ABSENT), Check("/things/a", version + 1), Check("/things/b", version)):
            writes = [Write("/things/a", b"2"), Write("/things/b", b"2"), Write("/elsewhere/c", b"2")]
            assert await store.txn([check], writes) is None
            assert await store.txn([Check("/things/c", ABSENT), check], [Write("/things/a", None)]) is None
        assert list(await store.list("/things")) == [Entry("/things/a", b"1", version)]
        assert list(await store.list("/elsewhere")) == []

    stores.run(test())


def test_all_writes_of_a_transaction_are_seen_together_and_told_in_order(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        await put(store, "/things/old", b"x")
        before = await put(store, "/things/b", b"x")
        versions = await store.txn(
            [Check("/things/b", before)],
            [
                Write("/things/a", b"1"),
                Write("/things/old", None),
                Write("/things/b", b"2"),
                Write("/things/none", None),
                Write("/others/c", b"3"),
            ],
        )
        assert versions is not None
        assert [bool(version) for version in versions] == [True, False, True, False, True]
        assert versions[2] > before
        assert list(await store.list("/things")) == [
            Entry("/things/a", b"1", versions[0]),
            Entry("/things/b", b"2", versions[2]),
        ]
        assert await entry_of(store, "/others/c") == Entry("/others/c", b"3", versions[4])

    stores.run(test())


def test_of_many_who_check_the_same_version_one_wins(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        version = await put(store, "/things/counter", b"0")
        checks = [Check("/things/counter", version)]
        results = await asyncio.gather(*(store.txn(checks, [Write("/things/counter", b"%d" % me)]) for me in range(10)))
        winners = [me for me, versions in enumerate(results) if versions is not None]
        assert len(winners) == 1
        assert (await entry_of(store, "/things/counter")).value == b"%d" % winners[0]

    stores.run(test())


def test_a_list_has_what_is_directly_in_a_directory_sorted_and_nothing_else(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        inside = ["/things/b", "/things/a", "/things/a-b", "/things/é", "/things/10", "/things/9"]
        others = ["/things/inner/deep", "/things/inner/deeper/still", "/things0/x", "/things-x/y", "/thingsa/b", "/z/é"]
        for key in [*inside, *others]:
            await put(store, key, key.encode())
        for directory in ("/things", "/things/"):
            entries = await store.list(directory)
            assert [entry.key for entry in entries] == sorted(inside)
            assert all(entry.value == entry.key.encode() for entry in entries)
        assert [entry.key for entry in await store.list("/things/inner")] == ["/things/inner/deep"]
        assert [entry.key for entry in await store.list("/z")] == ["/z/é"]
        assert list(await store.list("/nothing")) == []
        assert await store.get("/things/inner") is None
        assert await store.txn([Check("/things/inner", ABSENT), Check("/nothing/at/all", ABSENT)], []) is not None

    stores.run(test())


def test_an_empty_value_is_not_an_absent_one(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        version = await put(store, "/things/a", b"")
        assert await values_in(store, "/things") == {"/things/a": b""}
        assert await store.txn([Check("/things/a", ABSENT)], []) is None
        assert await store.txn([Check("/things/a", version)], []) is not None

    stores.run(test())


def test_a_deleted_key_is_absent_and_can_be_made_again(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        version = await put(store, "/things/a", b"1")
        assert await store.txn([Check("/things/a", version)], [Write("/things/a", None)]) == [ABSENT]
        assert await store.get("/things/a") is None
        assert await store.txn([Check("/things/a", ABSENT)], [Write("/things/a", b"2")]) is not None
        assert await values_in(store, "/things") == {"/things/a": b"2"}

    stores.run(test())


def test_a_transaction_takes_a_hundred_operations_and_refuses_what_no_store_takes(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        half = MAX_OPERATIONS // 2
        keys = [f"/things/{number:03}" for number in range(half)]
        versions = await store.txn([Check(key, ABSENT) for key in keys], [Write(key, b"1") for key in keys])
        assert versions is not None
        checks = [Check(key, version) for key, version in zip(keys, versions, strict=True)]
        assert await store.txn(checks, [Write(key, b"2") for key in keys]) is not None
        assert set((await values_in(store, "/things")).values()) == {b"2"}
        assert len(await store.list("/things")) == half
        for refused in (
            [Write(f"/others/{number}", b"") for number in range(MAX_OPERATIONS + 1)],
            [Write("/others/a", b"1"), Write("/others/a", b"2")],
            [Write("others", b"1")],
            [Write("/others/", b"1")],
        ):
            with pytest.raises(ValueError):
                await store.txn([], refused)
        assert list(await store.list("/others")) == []

    stores.run(test())


def test_a_transaction_of_the_most_bytes_is_taken_and_one_with_more_is_refused_whole(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        await put(store, "/things/a", b"before")
        room = MAX_TRANSACTION_BYTES - len("/things/a/things/b")
        for sizes in ((room + 1, 0), (room // 2 + 1, room // 2 + 1), (4 << 20, 4 << 20)):
            with pytest.raises(TooLarge, match="/things/a, /things/b"):
                await store.txn([], [Write("/things/a", bytes(sizes[0])), Write("/things/b", bytes(sizes[1]))])
        # Nothing was applied, and every connection survived.
        assert await values_in(store, "/things") == {"/things/a": b"before"}
        assert await store.txn([], [Write("/things/a", bytes(room)), Write("/things/b", b"")]) is not None
        assert (await entry_of(store, "/things/a")).value == bytes(room)

    stores.run(test())


def test_a_transaction_gives_keys_to_one_session_at_most(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        one, two = await store.open_session(stores.long_ttl_ms), await store.open_session(stores.long_ttl_ms)
        with pytest.raises(ValueError):
            await store.txn([], [Write("/things/one", b"1", one), Write("/things/two", b"1", two)])
        writes = [Write("/things/one", b"1", one), Write("/things/also", b"1", one), Write("/things/none", b"1")]
        assert await store.txn([], writes) is not None
        assert sorted(await values_in(store, "/things")) == ["/things/also", "/things/none", "/things/one"]

    stores.run(test())


def test_large_values_come_back_whole_by_every_way(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        values = {f"/things/{number}": bytes([number]) * LARGE_BYTES for number in range(3)}
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            for key, value in values.items():
                version = await put(store, key, value)
                assert await entry_of(store, key) == Entry(key, value, version)
            assert await values_in(store, "/things") == values
            await follower.until(lambda seen: seen == values)
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            await follower.until(lambda seen: seen == values)

    stores.run(test())


def test_ten_thousand_keys_are_listed_and_followed(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        values = {f"/things/{number:05}": b"value %d" % number for number in range(MANY_KEYS)}
        keys = list(values)
        for first in range(0, MANY_KEYS, MAX_OPERATIONS):
            writes = [Write(key, values[key]) for key in keys[first : first + MAX_OPERATIONS]]
            assert await store.txn([], writes) is not None
        assert [(entry.key, entry.value) for entry in await store.list("/things")] == list(values.items())
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            await follower.until(lambda seen: seen == values)
            await put(store, "/things/05000", b"changed")
            await follower.until(lambda seen: seen == {**values, "/things/05000": b"changed"})

    stores.run(test())


# --- watches


def test_a_watch_tells_all_there_is_first_also_where_that_is_nothing(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        await put(store, "/things/a", b"1")
        await put(store, "/things/b", b"2")
        async with (
            Follower(store, "/things", stores.patience_seconds) as things,
            Follower(store, "/nothing/yet", stores.patience_seconds) as nothing,
        ):
            await things.until(lambda seen: seen == {"/things/a": b"1", "/things/b": b"2"})
            await nothing.until(lambda seen: seen == {})
            assert things.told[0].is_complete
            assert nothing.told[0].is_complete
            await put(store, "/nothing/yet/c", b"3")
            await nothing.until(lambda seen: seen == {"/nothing/yet/c": b"3"})

    stores.run(test())


def test_a_watch_tells_what_is_made_changed_and_deleted_with_versions_that_can_be_checked(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            await follower.until(lambda seen: seen == {})
            await put(store, "/things/a", b"1")
            await follower.until(lambda seen: seen == {"/things/a": b"1"})
            version = await put(store, "/things/a", b"2")
            await follower.until(lambda seen: seen == {"/things/a": b"2"})
            assert follower.entries["/things/a"] == Entry("/things/a", b"2", version)
            await store.txn([], [Write("/things/b", b"3"), Write("/things/a", None)])
            await follower.until(lambda seen: seen == {"/things/b": b"3"})
            check = Check("/things/b", follower.entries["/things/b"].version)
            assert await store.txn([check], [Write("/things/b", None), Write("/things/a", b"4")]) is not None
            await follower.until(lambda seen: seen == {"/things/a": b"4"})

    stores.run(test())


def test_a_watch_tells_nothing_of_keys_beside_or_below_its_directory(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        await put(store, "/things/inner/a", b"1")
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            for key in ("/things/inner/b", "/things/other/c", "/things0/d", "/thing/e"):
                await put(store, key, b"1")
            await put(store, "/things/last", b"1")
            # The follower itself refuses keys that are not directly in its directory.
            await follower.until(lambda seen: seen == {"/things/last": b"1"})
            await store.txn([], [Write("/things/inner/a", None), Write("/things/inner/b", None)])
            await put(store, "/things/last", b"2")
            await follower.until(lambda seen: seen == {"/things/last": b"2"})

    stores.run(test())


def test_a_watch_that_is_read_late_tells_how_things_are_then(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        watch = store.watch("/things")
        first = await anext(watch)
        assert first.is_complete
        for number in range(100):
            await put(store, f"/things/{number % 3}", b"%d" % number)
        await store.txn([], [Write("/things/1", None)])
        expected = {"/things/0": b"99", "/things/2": b"98"}
        seen: dict[str, bytes] = {}
        async with asyncio.timeout(stores.patience_seconds):
            while seen != expected:
                changes = await anext(watch)
                if changes.is_complete:
                    seen = {}
                seen.update({entry.key: entry.value for entry in changes.entries})
                for key in changes.removed:
                    seen.pop(key, None)

    stores.run(test())


def test_every_follower_ends_with_what_many_writers_left(shared_stores: Stores) -> None:
    async def test() -> None:
        clients = [await shared_stores.client() for _ in range(3)]

        async def write(me: int) -> None:
            for number in range(30):
                key = f"/things/{(me + number) % 5}"
                if number % 7 == 6:
                    await clients[me].txn([], [Write(key, None)])
                else:
                    await put(clients[me], key, b"%d of %d" % (number, me))

        followers = [Follower(client, "/things", shared_stores.patience_seconds) for client in clients]
        async with followers[0], followers[1], followers[2]:
            await asyncio.gather(*(write(me) for me in range(3)))
            left = await values_in(clients[0], "/things")
            for follower in followers:
                await follower.until(lambda seen: seen == left)
            versions = {entry.key: entry.version for entry in await clients[1].list("/things")}
            for follower in followers:
                assert {key: entry.version for key, entry in follower.entries.items()} == versions

    shared_stores.run(test())


def test_closing_a_store_ends_its_watches_and_it_answers_nothing_any_more(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        await put(store, "/things/a", b"1")
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            await follower.until(lambda seen: len(seen) == 1)
            await store.close()

            async def has_ended() -> bool:
                return follower.has_ended

            await stores.until(has_ended, "the watch ends with its store")
        for call in (store.get("/things/a"), store.list("/things"), store.txn([], []), store.open_session(10_000)):
            with pytest.raises(Unavailable):
                await call
        await store.close()

    stores.run(test())


# --- several clients


def test_what_one_client_was_told_is_written_every_other_one_reads(shared_stores: Stores) -> None:
    async def test() -> None:
        one, other = await shared_stores.client(), await shared_stores.client()
        for number in range(20):
            version = await put(one, "/things/a", b"%d" % number)
            assert await entry_of(other, "/things/a") == Entry("/things/a", b"%d" % number, version)
            assert await values_in(other, "/things") == {"/things/a": b"%d" % number}
            one, other = other, one

    shared_stores.run(test())


def test_concurrent_counting_loses_nothing(shared_stores: Stores) -> None:
    async def test() -> None:
        clients = [await shared_stores.client() for _ in range(4)]

        async def count(store: Store) -> None:
            done = 0
            while done < 15:
                done += await increment(store, "/things/counter")

        await asyncio.gather(*(count(store) for store in clients))
        for store in clients:
            assert (await entry_of(store, "/things/counter")).value == b"60"

    shared_stores.run(test())


def test_of_many_who_make_a_key_one_succeeds(shared_stores: Stores) -> None:
    async def test() -> None:
        clients = [await shared_stores.client() for _ in range(4)]
        for number in range(5):
            key = f"/new/parent-{number}/key"
            results = await asyncio.gather(
                *(store.txn([Check(key, ABSENT)], [Write(key, b"%d" % me)]) for me, store in enumerate(clients))
            )
            winners = [me for me, versions in enumerate(results) if versions is not None]
            assert len(winners) == 1
            assert (await entry_of(clients[0], key)).value == b"%d" % winners[0]

    shared_stores.run(test())


# --- sessions


def test_keys_of_a_session_are_gone_when_it_is_closed_and_others_stay(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        session = await store.open_session(stores.long_ttl_ms)
        assert not session.is_lost
        assert session.deadline > stores.clock.monotonic()
        async with Follower(store, "/things", stores.patience_seconds) as follower:
            writes = [Write("/things/mine", b"1", session), Write("/things/stays", b"2")]
            versions = await store.txn([Check("/things/mine", ABSENT)], writes)
            assert versions is not None
            assert await entry_of(store, "/things/mine") == Entry("/things/mine", b"1", versions[0])
            await follower.until(lambda seen: len(seen) == 2)
            check = Check("/things/mine", versions[0])
            assert await store.txn([check], [Write("/things/mine", b"3", session)]) is not None
            await follower.until(lambda seen: seen == {"/things/mine": b"3", "/things/stays": b"2"})
            await session.close()
            assert await store.get("/things/mine") is None
            await follower.until(lambda seen: seen == {"/things/stays": b"2"})
        assert session.is_lost
        await session.wait_until_lost()
        await session.close()
        assert await store.txn([Check("/things/mine", ABSENT)], [Write("/things/mine", b"4")]) is not None

    stores.run(test())


def test_a_deleted_key_of_a_session_stays_deleted_and_its_session_goes_on(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        session = await store.open_session(stores.long_ttl_ms)
        await store.txn([], [Write("/things/a", b"1", session), Write("/things/b", b"1", session)])
        await store.txn([], [Write("/things/a", None)])
        await store.txn([], [Write("/things/a", b"2")])
        await session.close()
        assert await values_in(store, "/things") == {"/things/a": b"2"}

    stores.run(test())


def test_a_key_belongs_to_the_session_that_wrote_it_last(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        first, second = await store.open_session(stores.long_ttl_ms), await store.open_session(stores.long_ttl_ms)
        keys = ["/things/to-second", "/things/to-nobody", "/things/from-nobody"]
        versions = await store.txn([], [Write(key, b"1", None if "from" in key else first) for key in keys])
        assert versions is not None
        checks = [Check(key, version) for key, version in zip(keys, versions, strict=True)]
        writes = [Write(key, b"2", None if "to-nobody" in key else second) for key in keys]
        taken = await store.txn(checks, writes)
        assert taken is not None
        entries = [await entry_of(store, key) for key in keys]
        assert [(entry.value, entry.version) for entry in entries] == [(b"2", version) for version in taken]
        await first.close()
        assert await values_in(store, "/things") == dict.fromkeys(sorted(keys), b"2")
        assert not second.is_lost
        await second.close()
        assert await values_in(store, "/things") == {"/things/to-nobody": b"2"}

    stores.run(test())


def test_a_write_with_a_session_that_has_ended_is_refused_whole(stores: Stores) -> None:
    async def test() -> None:
        store = await stores.client()
        session = await store.open_session(stores.long_ttl_ms)
        await session.close()
        with pytest.raises(Unavailable):
            await store.txn([], [Write("/things/a", b"1"), Write("/things/mine", b"1", session)])
        assert list(await store.list("/things")) == []

    stores.run(test())


def test_a_session_is_held_for_as_long_as_its_holder_lives(stores: Stores) -> None:
    async def test() -> None:
        clock, ttl_seconds = stores.clock, stores.ttl_ms / 1000
        store = await stores.client()
        session = await hold(stores, store, "/things/mine", stores.ttl_ms)
        began = last = clock.monotonic()
        slowest = 0.0
        while last - began < 2.5 * ttl_seconds:
            entry = await store.get("/things/mine")
            now = clock.monotonic()
            slowest, last = max(slowest, now - last), now
            if session.is_lost or entry is None:
                # The machine was so busy that holder or store paused for long, which proves nothing: try again.
                assert slowest > ttl_seconds / 4, "it was lost though its holder and the store were there"
                session = await hold(stores, store, "/things/mine", stores.ttl_ms)
                began = last = clock.monotonic()
                slowest = 0.0
            else:
                assert entry.value == b"1"
                await asyncio.sleep(ttl_seconds / 10)

    stores.run(test())


def test_closing_a_store_ends_its_sessions(shared_stores: Stores) -> None:
    async def test() -> None:
        leaving, staying = await shared_stores.client(), await shared_stores.client()
        session = await leaving.open_session(600_000)
        await leaving.txn([], [Write("/things/leaving", b"1", session)])
        async with Follower(staying, "/things", shared_stores.patience_seconds) as follower:
            await follower.until(lambda seen: len(seen) == 1)
            await leaving.close()
            await follower.until(lambda seen: seen == {})
        assert session.is_lost

    shared_stores.run(test())


def test_keys_of_a_client_that_dies_are_gone_and_those_of_others_stay(shared_stores: Stores) -> None:
    async def test() -> None:
        dying, living = await shared_stores.client(), await shared_stores.client()
        await hold(shared_stores, living, "/things/living", shared_stores.long_ttl_ms)
        await hold(shared_stores, dying, "/things/dying", shared_stores.ttl_ms)
        await put(dying, "/things/stays", b"1")
        async with Follower(living, "/things", shared_stores.patience_seconds) as follower:
            await follower.until(lambda seen: len(seen) == 3)
            await shared_stores.die(dying)
            await follower.until(lambda seen: list(seen) == ["/things/living", "/things/stays"])
        assert await living.get("/things/dying") is None
        assert (await entry_of(living, "/things/living")).value == b"1"

    shared_stores.run(test())


def test_a_key_is_taken_over_from_the_session_of_another_client(shared_stores: Stores) -> None:
    async def test() -> None:
        old, new = await shared_stores.client(), await shared_stores.client()
        old_session = await old.open_session(shared_stores.long_ttl_ms)
        await old.txn([], [Write("/things/me", b"old", old_session)])
        session = await new.open_session(shared_stores.long_ttl_ms)
        assert await new.txn([Check("/things/me", ABSENT)], [Write("/things/me", b"new", session)]) is None
        found = Check("/things/me", (await entry_of(new, "/things/me")).version)
        async with Follower(old, "/things", shared_stores.patience_seconds) as follower:
            assert await new.txn([found], [Write("/things/me", b"new", session)]) is not None
            await follower.until(lambda seen: seen == {"/things/me": b"new"})
            # Neither a late write of the old owner nor the end of its session affects it.
            assert await old.txn([found], [Write("/things/me", b"late", old_session)]) is None
            await old_session.close()
            assert (await entry_of(new, "/things/me")).value == b"new"
            await session.close()
            await follower.until(lambda seen: seen == {})

    shared_stores.run(test())


# --- cut off from the store


def test_who_is_cut_off_is_told_and_can_go_on_after_it(breakable_stores: Stores) -> None:
    async def test() -> None:
        store, other = await breakable_stores.client(), await breakable_stores.client()
        version = await put(other, "/things/a", b"1")
        await breakable_stores.cut(store)
        for _ in range(2):
            outcomes = await asyncio.gather(
                store.get("/things/a"),
                store.list("/things"),
                store.txn([Check("/things/a", version + 1)], [Write("/things/b", b"never")]),
                store.open_session(breakable_stores.ttl_ms),
                return_exceptions=True,
            )
            assert [type(outcome) for outcome in outcomes] == [Unavailable] * 4
        assert await values_in(other, "/things") == {"/things/a": b"1"}
        await breakable_stores.mend(store)
        await answers_again(breakable_stores, store)

        async def is_written() -> bool:
            # On a busy machine it may be lost again; the unanswered write is found then.
            try:
                await store.txn([Check("/things/a", version)], [Write("/things/a", b"2")])
                return await values_in(store, "/things") == {"/things/a": b"2"}
            except Unavailable:
                return False

        await breakable_stores.until(is_written, "who was cut off writes again")

    breakable_stores.run(test())


def test_a_transaction_without_an_answer_was_applied_whole_or_not_at_all(breakable_stores: Stores) -> None:
    async def test() -> None:
        store, other = await breakable_stores.client(), await breakable_stores.client()
        keys = [f"/things/{number}" for number in range(20)]
        await other.txn([], [Write(key, b"0") for key in keys])
        for attempt in range(3):
            await breakable_stores.cut(store)
            with pytest.raises(Unavailable):
                await store.txn([], [Write(key, b"%d" % (attempt + 1)) for key in keys])
            await breakable_stores.mend(store)
            await answers_again(breakable_stores, store)
            for client in (store, other):
                found = await breakable_stores.patiently(partial(values_in, client, "/things"))
                assert len(set(found.values())) == 1

    breakable_stores.run(test())


def test_a_watch_misses_nothing_of_what_happened_while_it_was_cut_off(breakable_stores: Stores) -> None:
    async def test() -> None:
        store, other = await breakable_stores.client(), await breakable_stores.client()
        await other.txn([], [Write(f"/things/{name}", b"before") for name in ("stays", "changes", "goes")])
        async with Follower(store, "/things", breakable_stores.patience_seconds) as follower:
            await follower.until(lambda seen: len(seen) == 3)
            for attempt in range(3):
                await breakable_stores.cut(store)
                value = b"during %d" % attempt
                await put(other, "/things/changes", value)
                await put(other, f"/things/new-{attempt}", value)
                await other.txn([], [Write("/things/goes", None)])
                if attempt == 1:  # even if the connection is given up meanwhile
                    with pytest.raises(Unavailable):
                        await store.get("/things/changes")
                await breakable_stores.mend(store)
                left = await values_in(other, "/things")
                await follower.until(lambda seen: seen == left)  # noqa: B023
                await put(other, "/things/goes", b"back")
                await follower.until(lambda seen: seen.get("/things/goes") == b"back")

    breakable_stores.run(test())


def test_a_watch_begun_while_cut_off_begins_when_the_store_is_back(breakable_stores: Stores) -> None:
    async def test() -> None:
        store, other = await breakable_stores.client(), await breakable_stores.client()
        await put(other, "/things/a", b"1")
        await breakable_stores.cut(store)
        async with Follower(store, "/things", breakable_stores.patience_seconds) as follower:
            with pytest.raises(Unavailable):
                await store.get("/things/a")
            await put(other, "/things/a", b"2")
            assert follower.told == []
            await breakable_stores.mend(store)
            await follower.until(lambda seen: seen == {"/things/a": b"2"})

    breakable_stores.run(test())


def test_a_session_is_lost_to_its_holder_before_anybody_sees_its_keys_vanish(breakable_stores: Stores) -> None:
    async def test() -> None:
        clock = breakable_stores.clock
        store, other = await breakable_stores.client(), await breakable_stores.client()
        session = await hold(breakable_stores, store, "/things/mine", breakable_stores.ttl_ms)
        async with Follower(other, "/things", breakable_stores.patience_seconds) as follower:
            await follower.until(lambda seen: len(seen) == 1)
            await breakable_stores.cut(store)
            vanished = asyncio.ensure_future(follower.until(lambda seen: seen == {}))
            while not session.is_lost:
                assert not vanished.done(), "others see it vanish while its holder believes in it"
                await asyncio.sleep(0.005)
            assert session.deadline <= clock.monotonic()
            async with asyncio.timeout(breakable_stores.patience_seconds):
                await session.wait_until_lost()
            await vanished
            await breakable_stores.mend(store)
            await answers_again(breakable_stores, store)
            # A lost session stays lost, whatever the store says later; another one replaces it.
            assert session.is_lost
            with pytest.raises(Unavailable):
                await store.txn([], [Write("/things/mine", b"2", session)])
            assert await other.get("/things/mine") is None
            following = await hold(breakable_stores, store, "/things/mine", breakable_stores.long_ttl_ms)
            await follower.until(lambda seen: seen == {"/things/mine": b"1"})
            assert not following.is_lost

    breakable_stores.run(test())


def test_a_session_outlives_a_cut_that_is_short(breakable_stores: Stores) -> None:
    async def test() -> None:
        store, other = await breakable_stores.client(), await breakable_stores.client()
        session = await hold(breakable_stores, store, "/things/mine", breakable_stores.long_ttl_ms)
        await breakable_stores.cut(store)
        with pytest.raises(Unavailable):
            await store.get("/things/mine")
        await breakable_stores.mend(store)
        before = session.deadline

        async def is_renewed() -> bool:
            return session.deadline > before or math.isinf(before)

        await breakable_stores.until(is_renewed, "the session is renewed after the cut")
        assert not session.is_lost
        assert (await entry_of(other, "/things/mine")).value == b"1"
        await session.close()
        assert await other.get("/things/mine") is None

    breakable_stores.run(test())


def test_what_is_closed_while_cut_off_is_gone_within_its_time_to_live(breakable_stores: Stores) -> None:
    async def test() -> None:
        store, other = await breakable_stores.client(), await breakable_stores.client()
        one = await hold(breakable_stores, store, "/things/one", breakable_stores.ttl_ms)
        two = await hold(breakable_stores, store, "/things/two", breakable_stores.ttl_ms)
        await breakable_stores.cut(store)
        async with Follower(other, "/things", breakable_stores.patience_seconds) as follower:
            await one.close()
            assert one.is_lost
            await store.close()
            assert two.is_lost
            await follower.until(lambda seen: seen == {})

    breakable_stores.run(test())


# --- a server of the store dies


def test_everything_goes_on_after_a_server_was_killed_and_started_again(restarting_stores: Stores) -> None:
    async def test() -> None:
        store, other = await restarting_stores.client(), await restarting_stores.client()
        # Long enough to outlive two starts of a server on a busy machine.
        session = await store.open_session(4 * restarting_stores.long_ttl_ms)
        await store.txn([], [Write("/things/mine", b"1", session), Write("/things/a", b"1")])
        async with (
            Follower(store, "/things", restarting_stores.patience_seconds) as follower,
            Follower(other, "/things", restarting_stores.patience_seconds) as other_follower,
        ):
            await follower.until(lambda seen: len(seen) == 2)
            for attempt in range(2):
                await restarting_stores.kill()
                await restarting_stores.restart()
                value = b"after %d" % attempt

                async def written() -> bool:
                    try:
                        return await other.txn([], [Write("/things/a", value)]) is not None  # noqa: B023
                    except Unavailable:
                        return False

                await restarting_stores.until(written, "the store is written to again")
                # A session whose holder is back in time has not ended, and its keys are there.
                for seen_by in (follower, other_follower):
                    await seen_by.until(lambda seen: seen == {"/things/a": value, "/things/mine": b"1"})  # noqa: B023
                assert not session.is_lost
            # The returning holder closes its session, so nobody waits for its end.
            await restarting_stores.patiently(lambda: store.txn([], [Write("/things/mine", b"1", session)]))
            await session.close()
            await other_follower.until(lambda seen: list(seen) == ["/things/a"])

    restarting_stores.run(test())


def test_counting_loses_nothing_that_was_acknowledged_when_a_server_is_killed_in_the_middle(
    restarting_stores: Stores,
) -> None:
    async def test() -> None:
        clients = [await restarting_stores.client() for _ in range(3)]
        acknowledged = [0, 0, 0]
        unknown = [0, 0, 0]
        is_over = False

        async def count(me: int) -> None:
            while not is_over:
                try:
                    acknowledged[me] += await increment(clients[me], "/things/counter")
                except Unavailable:
                    unknown[me] += 1
                    await asyncio.sleep(0.01)

        async def counted_to(target: int) -> None:
            async def reached() -> bool:
                return sum(acknowledged) >= target

            await restarting_stores.until(reached, f"{target} are counted")

        counting = [asyncio.ensure_future(count(me)) for me in range(3)]
        async with Follower(clients[0], "/things", restarting_stores.patience_seconds) as follower:
            try:
                await counted_to(10)
                for _ in range(2):
                    await restarting_stores.kill()
                    await restarting_stores.restart()
                    await counted_to(sum(acknowledged) + 10)
            finally:
                is_over = True
                await asyncio.gather(*counting)
            value = (await entry_of(clients[1], "/things/counter")).value
            assert sum(acknowledged) <= int(value) <= sum(acknowledged) + sum(unknown)
            await follower.until(lambda seen: seen == {"/things/counter": value})

    restarting_stores.run(test())
