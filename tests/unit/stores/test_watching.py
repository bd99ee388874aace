from __future__ import annotations

import asyncio
import gc

import pytest

from tailrace.cluster.store import Changes, Entry
from tailrace.stores.watching import DirectoryWatch, Watches, directory_of
from tailrace.testing import loop as sim


def entry(name: str, version: int) -> Entry:
    return Entry(f"/things/{name}", b"%d" % version, version)


async def nothing_comes(watch: DirectoryWatch) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await anext(watch)


def test_changes_before_the_beginning_are_in_it() -> None:
    async def test() -> None:
        watch = DirectoryWatch("/things/")
        watch.change({"/things/a": entry("a", 1)})
        await nothing_comes(watch)
        watch.begin([entry("a", 1), entry("b", 2)])
        assert await anext(watch) == Changes([entry("a", 1), entry("b", 2)], [], True)
        await nothing_comes(watch)

    sim.run(test(), seed=0)


def test_an_empty_directory_is_told_too() -> None:
    async def test() -> None:
        watch = DirectoryWatch("/things")
        watch.begin([])
        assert await anext(watch) == Changes([], [], True)
        await nothing_comes(watch)

    sim.run(test(), seed=0)


def test_what_was_not_read_is_told_once_in_its_last_state_and_in_order_of_change() -> None:
    async def test() -> None:
        watch = DirectoryWatch("/things")
        watch.begin([entry("a", 1), entry("b", 2), entry("c", 3)])
        await anext(watch)
        watch.change({"/things/a": entry("a", 4)})
        watch.change({"/things/b": None, "/things/c": entry("c", 5)})
        watch.change({"/things/a": entry("a", 6)})
        watch.change({"/things/c": None})
        watch.change({})
        assert await anext(watch) == Changes([entry("a", 6)], ["/things/b", "/things/c"], False)
        await nothing_comes(watch)

    sim.run(test(), seed=0)


def test_what_changes_before_everything_was_read_is_part_of_it() -> None:
    async def test() -> None:
        watch = DirectoryWatch("/things")
        watch.begin([entry("a", 1), entry("b", 2)])
        watch.change({"/things/a": None, "/things/c": entry("c", 3)})
        assert await anext(watch) == Changes([entry("b", 2), entry("c", 3)], [], True)
        watch.change({"/things/b": None})
        watch.begin([entry("c", 4)])  # after a gap: what was still to be told is older than this
        assert await anext(watch) == Changes([entry("c", 4)], [], True)

    sim.run(test(), seed=0)


def test_a_reader_is_woken_and_may_give_up() -> None:
    async def test() -> None:
        watch = DirectoryWatch("/things")
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(1)
        watch.begin([entry("a", 1)])
        watch.change({"/things/a": entry("a", 2)})
        assert (await reading).entries == [entry("a", 2)]
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(1)
        watch.end()
        with pytest.raises(StopAsyncIteration):
            await reading
        assert [changes async for changes in watch] == []

    sim.run(test(), seed=0)


def test_each_watch_is_told_of_its_own_directory_until_nobody_holds_it() -> None:
    async def test() -> None:
        watches = Watches()
        things, others, top = watches.add("/things"), watches.add("/others"), watches.add("/")
        for watch in (things, others, top):
            watch.begin([])
            await anext(watch)
        deep = Entry("/things/inner/x", b"", 1)
        shallow = Entry("/x", b"", 1)
        watches.publish({"/things/a": entry("a", 1), deep.key: deep, "/others/b": None, shallow.key: shallow})
        assert await anext(things) == Changes([entry("a", 1)], [], False)
        assert await anext(others) == Changes([], ["/others/b"], False)
        assert await anext(top) == Changes([shallow], [], False)
        del others, watch
        gc.collect()
        assert len(watches) == 2
        watches.end()
        assert [changes async for changes in things] == []

    sim.run(test(), seed=0)


def test_the_directory_of_a_key() -> None:
    assert directory_of("/things/inner/a") == "/things/inner"
    assert directory_of("/a") == ""
