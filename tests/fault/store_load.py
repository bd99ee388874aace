"""Load on a store while its servers fail, and the check that nothing was lost.

Brokers must come through it: whatever the store acknowledged is there, whatever it did not is there once or not at all,
a watch ends with what is stored, and a session is lost only when its time is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop

from tailrace.cluster.store import ABSENT, Check, Session, Store, Unavailable, Write

T = TypeVar("T")

WRITERS = 4
#: A broker's default.
SESSION_TTL_MS = 9_000
#: Until the others elect another leader in place of a silent one: on a busy machine that may outlast a usual session.
LONG_SESSION_TTL_MS = 30_000
#: Much more than anything here takes, also on a busy machine: it only ends a wait for what will never come.
PATIENCE_SECONDS = 180


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the loop that brokers have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until an expected condition is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {what}"
        await asyncio.sleep(0.01)


async def answer_of(ask: Callable[[], Awaitable[T]]) -> T:
    """What a store answers, asked again while it does not: after a disturbance it may take a while to settle."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await ask()
        except Unavailable:
            assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: an answer"
        await asyncio.sleep(0.05)


class Writer:
    """Counts a key of its own and one that all share upwards, by compare and set, and remembers what it was told."""

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self.key = f"/counters/{number}"
        self.acknowledged = 0
        self.unknown = 0
        self.shared_acknowledged = 0
        self.shared_unknown = 0
        self.longest_gap = self.recent_gap = 0.0
        self._last = time.monotonic()

    async def count(self) -> None:
        while True:
            try:
                await self._count_own()
                await self._count_shared()
            except Unavailable:
                pass  # it could not read; failed writes are counted where they happen

    async def _count_own(self) -> None:
        entry = await self._store.get(self.key)
        value = int(entry.value) if entry else 0
        # It has no other writer: everything acknowledged is there, and nothing else twice.
        assert self.acknowledged <= value <= self.acknowledged + self.unknown
        try:
            versions = await self._store.txn(
                [Check(self.key, entry.version if entry else ABSENT)], [Write(self.key, b"%d" % (value + 1))]
            )
        except Unavailable:
            self.unknown += 1
            raise
        # An earlier write of unknown outcome may still be applied, and then this one is refused.
        if versions is None:
            assert self.unknown
            return
        self.acknowledged += 1
        now = time.monotonic()
        self.recent_gap = max(self.recent_gap, now - self._last)
        self.longest_gap = max(self.longest_gap, self.recent_gap)
        self._last = now

    async def _count_shared(self) -> None:
        entry = await self._store.get("/counters/shared")
        value = int(entry.value) if entry else 0
        check = Check("/counters/shared", entry.version if entry else ABSENT)
        try:
            versions = await self._store.txn([check], [Write("/counters/shared", b"%d" % (value + 1))])
        except Unavailable:
            self.shared_unknown += 1
            raise
        if versions is not None:
            self.shared_acknowledged += 1


class Follower:
    """Follows the counters, and checks that they never go back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.values: dict[str, bytes] = {}
        self._versions: dict[str, int] = {}

    async def follow(self) -> None:
        async for changes in self._store.watch("/counters"):
            assert not changes.removed
            for entry in changes.entries:
                assert entry.version >= self._versions.get(entry.key, 0)
                assert int(entry.value) >= int(self.values.get(entry.key, b"0"))
                self._versions[entry.key], self.values[entry.key] = entry.version, entry.value


class Held:
    """A session and its key, as a broker has them; reopened when it has expired."""

    def __init__(self, store: Store, ttl_ms: int, *, may_be_late: bool) -> None:
        self._store = store
        self._ttl_ms = ttl_ms
        self._may_be_late = may_be_late
        self.session: Session
        self.version = ABSENT
        #: How often it was lost.
        self.losses = 0

    async def open(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._try_to_open():  # noqa: ASYNC110  nobody tells when a store is back
                await asyncio.sleep(0.05)

    async def _try_to_open(self) -> bool:
        try:
            self.session = await self._store.open_session(self._ttl_ms)
            entry = await self._store.get("/mine")
            check = Check("/mine", ABSENT if entry is None else entry.version)
            versions = await self._store.txn([check], [Write("/mine", b"here", self.session)])
        except Unavailable:
            return False
        if versions is not None:
            (self.version,) = versions
        return versions is not None

    async def is_kept(self, gap_seconds: float) -> None:
        """Open another if it was lost, which is right only when its time was over, and not while others were served.

        Of a server that hangs its holder learns late: where that may be, it is enough that its time was over.
        """
        session = self.session
        if session.is_lost:
            assert time.monotonic() >= session.deadline, "it was lost before its time was over"
            assert self._may_be_late or gap_seconds > self._ttl_ms / 4000, (
                f"nobody renewed it, though writes went on after {gap_seconds:.1f} s"
            )
            self.losses += 1
            await self.open()


class Load(NamedTuple):
    """What runs while servers fail."""

    tasks: list[asyncio.Task[None]]
    writers: list[Writer]
    held: Held

    def progress(self) -> int:
        """The lowest number of acknowledged writes of any writer."""
        for task in self.tasks:
            if task.done():
                task.result()
        return min(writer.acknowledged for writer in self.writers)

    async def goes_on(self, what: str) -> None:
        """Wait until every writer has written again, and the session was renewed again."""
        session = self.held.session
        reached, deadline = self.progress(), session.deadline
        for writer in self.writers:
            writer.recent_gap = 0.0
        await until(lambda: self.progress() > reached + 10, what)
        await until(lambda: session.deadline > deadline or session.is_lost, f"a session is renewed or over, {what}")
        await self.held.is_kept(max(writer.recent_gap for writer in self.writers))


async def load_while(
    open_store: Callable[[int], Store],
    disturb: Callable[[Load], Coroutine[Any, Any, None]],
    session_ttl_ms: int = SESSION_TTL_MS,
    *,
    may_be_late: bool = False,
) -> str:
    """Count, follow and hold a session while servers are disturbed; returns what is worth printing.

    `open_store` gives a client of its own for each number.
    """
    stores: list[Store] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        stores += [open_store(number) for number in range(WRITERS + 2)]
        writers = [Writer(store, number) for number, store in enumerate(stores[:WRITERS])]
        follower = Follower(stores[WRITERS])
        held = Held(stores[WRITERS + 1], session_ttl_ms, may_be_late=may_be_late)
        await held.open()
        tasks = [asyncio.ensure_future(work) for work in (follower.follow(), *(writer.count() for writer in writers))]
        load = Load(tasks, writers, held)
        await load.goes_on("before the first disturbance")
        await disturb(load)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks[1:])
        for task in tasks[1:]:
            assert task.cancelled(), task.exception()

        async def counters() -> dict[str, bytes]:
            entries = await answer_of(lambda: stores[0].list("/counters"))
            return {entry.key: entry.value for entry in entries}

        # The outcome of a cancelled write is unknown, like that of one without an answer.
        stored = {key: int(value) for key, value in (await counters()).items()}
        for writer in writers:
            assert writer.acknowledged <= stored[writer.key] <= writer.acknowledged + writer.unknown + 1
        acknowledged = sum(writer.shared_acknowledged for writer in writers)
        unknown = sum(writer.shared_unknown for writer in writers)
        assert acknowledged <= stored["/counters/shared"] <= acknowledged + unknown + WRITERS
        # Checked again each time: a cancelled write may still be applied.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while follower.values != (last := await counters()):
            assert time.monotonic() < deadline, f"the watch has {follower.values} and not what is stored, {last}"
            await asyncio.sleep(0.01)
        await held.is_kept(max(writer.recent_gap for writer in writers))
        entry = await answer_of(lambda: stores[0].get("/mine"))
        assert entry is not None
        assert entry.version == held.version
        total = sum(writer.acknowledged + writer.shared_acknowledged for writer in writers)
        unknown += sum(writer.unknown for writer in writers)
        gap = max(writer.longest_gap for writer in writers)
        return (
            f"{total} writes acknowledged, {unknown} of unknown outcome, longest without one {gap:.1f} s, "
            f"a session lost {held.losses} times"
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            await store.close()


async def without_a_majority(
    store: Store,
    other: Store,
    lose: Callable[[], None],
    regain: Callable[[], None],
    session_ttl_ms: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stop the majority of the servers and restart it: nothing is promised meanwhile, and everything recovers."""
    versions = await store.txn([], [Write("/d/a", b"1")])
    assert versions is not None
    watch = store.watch("/d")
    await anext(watch)
    session = await store.open_session(session_ttl_ms)
    assert await store.txn([], [Write("/d/mine", b"1", session)])
    await anext(watch)

    await asyncio.to_thread(lose)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await store.txn([Check("/d/a", versions[0])], [Write("/d/a", b"2")])
    with pytest.raises(Unavailable):
        await store.get("/d/a")
    assert time.monotonic() - started < 60, "each call has its time"
    await session.wait_until_lost()
    assert session.is_lost
    assert [record for record in caplog.records if record.levelno == logging.WARNING], "it was said"

    await asyncio.to_thread(regain)
    # The watch shows the write of unknown outcome and the end of the session like any other change.
    async with asyncio.timeout(PATIENCE_SECONDS):

        async def write() -> Sequence[int] | None:
            entry = await other.get("/d/a")
            assert entry is not None
            return await other.txn([Check("/d/a", entry.version)], [Write("/d/a", b"3")])

        while (written := await answer_of(write)) is None:
            pass  # the write of unknown outcome came in between
        seen, gone = 0, False
        while seen != written[0] or not gone:
            changes = await anext(watch)
            seen = max([seen, *(entry.version for entry in changes.entries if entry.key == "/d/a")])
            is_told = changes.is_complete and all(entry.key != "/d/mine" for entry in changes.entries)
            gone = gone or is_told or "/d/mine" in changes.removed
        again = await answer_of(lambda: store.open_session(session_ttl_ms))
        assert await store.txn([Check("/d/mine", ABSENT)], [Write("/d/mine", b"2", again)])
        assert session.is_lost, "it never comes back"
