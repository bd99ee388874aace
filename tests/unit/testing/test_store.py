"""The simulated store: each fault does what it says, no run breaks the port, and a seed gives one run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cluster.store import ABSENT, Check, Entry, Refused, TooLarge, Unavailable, Write
from tailrace.stores.watching import Changed
from tailrace.testing.loop import SimLoop
from tailrace.testing.store import NASTY, SimCoordination, SimSession, SimStore, StoreFaults
from tests.contract.follower import Follower

SEEDS = range(30)
QUICK = StoreFaults(latency_seconds=(0.001, 0.002), slow=0.0, late_expiry_seconds=(0.0, 0.0))


def simulate(
    scenario: Callable[[SimCoordination], Coroutine[Any, Any, None]], faults: StoreFaults = QUICK, seed: int = 0
) -> SimCoordination:
    loop = SimLoop(seed)
    coordination = SimCoordination(loop, loop.random_for("store"), faults)
    loop.run(scenario(coordination))
    return coordination


def value_of(coordination: SimCoordination, key: str) -> bytes | None:
    entry = coordination.space.get(key)
    return None if entry is None else entry.value


# --- single faults


def test_a_call_that_is_refused_is_not_applied() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        for call in (store.txn([], [Write("/things/a", b"1")]), store.get("/things/a"), store.open_session(1000)):
            with pytest.raises(Unavailable):
                await call
        await asyncio.sleep(60)
        assert value_of(coordination, "/things/a") is None

    assert simulate(scenario, replace(QUICK, refused=1.0)).injected == {"not applied and unavailable": 3}


def test_a_store_that_refuses_or_calls_a_change_too_large_applies_nothing() -> None:
    async def refusing(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        for call in (store.txn([], [Write("/things/a", b"1")]), store.get("/things/a"), store.open_session(1000)):
            with pytest.raises(Refused):
                await call
        assert value_of(coordination, "/things/a") is None

    async def too_large(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        with pytest.raises(TooLarge):
            await store.txn([], [Write("/things/a", b"1")])
        assert await store.get("/things/a") is None  # reads are answered

    assert simulate(refusing, replace(QUICK, denied=1.0)).injected == {"refused for good": 3}
    assert simulate(too_large, replace(QUICK, too_large=1.0)).injected == {"called too large": 1}


def test_a_call_that_is_not_answered_is_applied() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        with pytest.raises(Unavailable):
            await store.txn([], [Write("/things/a", b"1")])
        entry = await store.get("/things/a")  # reads are answered
        assert entry is not None
        assert entry.value == b"1"

    assert simulate(scenario, replace(QUICK, unanswered=1.0)).injected == {"applied but unavailable": 1}


def test_a_late_call_is_applied_after_its_sender_was_told_that_nobody_knows() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        with pytest.raises(Unavailable):
            await store.txn([Check("/things/a", ABSENT)], [Write("/things/a", b"late")])
        assert value_of(coordination, "/things/a") is None
        await asyncio.sleep(10)
        assert value_of(coordination, "/things/a") == b"late"
        # A check protects from it, as it must.
        with pytest.raises(Unavailable):
            await store.txn([Check("/things/a", ABSENT)], [Write("/things/a", b"too late")])
        await asyncio.sleep(10)
        assert value_of(coordination, "/things/a") == b"late"

    assert simulate(scenario, replace(QUICK, late=1.0)).injected == {"applied after unavailable": 2}


def test_an_answer_may_be_cut_off_after_the_request_was_applied() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        began = coordination.loop.time()
        change = asyncio.ensure_future(store.txn([], [Write("/things/a", b"1")]))
        while value_of(coordination, "/things/a") is None:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.0001)
        coordination.cut("a")
        with pytest.raises(Unavailable):
            await change
        assert coordination.loop.time() == began + QUICK.timeout_seconds
        coordination.heal("a")
        assert await store.get("/things/a") is not None

    simulate(scenario)


def test_watches_may_be_late_and_are_told_in_order() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        writer, store = coordination.store("a"), coordination.store("b")
        async with Follower(store, "/things") as follower:  # which refuses what goes back
            for number in range(50):
                await writer.txn([], [Write("/things/a", b"%d" % number)])
            last_written = coordination.loop.time()
            await follower.until(lambda seen: seen == {"/things/a": b"49"})
            assert coordination.loop.time() > last_written + 0.1
            versions = [entry.version for changes in follower.told for entry in changes.entries]
            assert versions == sorted(dict.fromkeys(versions))

    assert simulate(scenario, replace(QUICK, late_watch=0.3)).injected["late watch"] > 5


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_after_a_cut_a_watch_goes_on_or_begins_anew(gap: float) -> None:
    async def scenario(coordination: SimCoordination) -> None:
        writer, store = coordination.store("a"), coordination.store("b")
        async with Follower(store, "/things") as follower:
            await follower.until(lambda seen: seen == {})
            coordination.cut("b")
            for number in range(3):
                await writer.txn([], [Write(f"/things/{number}", b"1")])
            await asyncio.sleep(10)
            assert follower.values == {}
            coordination.heal("b")
            await follower.until(lambda seen: len(seen) == 3)
            assert [changes.is_complete for changes in follower.told] == ([True, True] if gap else [True, False])

    simulate(scenario, replace(QUICK, gap=gap))


def test_a_session_expires_as_late_as_it_is_told_to() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        session = await store.open_session(9_000)
        await store.txn([], [Write("/things/mine", b"1", session)])
        coordination.cut("a")
        await session.wait_until_lost()
        lost = coordination.loop.time()
        assert session.deadline == lost
        while value_of(coordination, "/things/mine") is not None:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        assert 4.0 <= coordination.loop.time() - lost <= 5.1

    simulate(scenario, replace(QUICK, late_expiry_seconds=(4.0, 5.0)))


def test_a_paused_process_hears_nothing_and_renews_nothing_until_it_goes_on() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store, other = coordination.store("a"), coordination.store("b")
        session = await store.open_session(9_000)
        await store.txn([], [Write("/things/mine", b"1", session)])
        async with Follower(store, "/things") as follower:
            await follower.until(lambda seen: len(seen) == 1)
            reading = asyncio.ensure_future(store.get("/things/mine"))
            await asyncio.sleep(0)
            coordination.pause("a")
            await asyncio.sleep(5)
            await other.txn([], [Write("/things/other", b"1")])
            await asyncio.sleep(3)
            assert not reading.done()
            assert value_of(coordination, "/things/mine") == b"1"
            await asyncio.sleep(10)
            assert value_of(coordination, "/things/mine") is None
            assert list(follower.values) == ["/things/mine"]
            coordination.resume("a")
            assert session.is_lost
            assert await reading is not None  # the answer had come in time, and lay there
            await follower.until(lambda seen: list(seen) == ["/things/other"])

    simulate(scenario)


def test_a_short_pause_costs_no_session() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        session = await coordination.store("a").open_session(9_000)
        for _ in range(5):
            coordination.pause("a")
            await asyncio.sleep(5)
            coordination.resume("a")
            await asyncio.sleep(1)
            assert not session.is_lost

    simulate(scenario)


@pytest.mark.parametrize(("seen_at_once", "seconds"), [(True, 0.01), (False, 9.01)])
def test_the_sessions_of_a_crashed_process_end_at_once_or_expire(seen_at_once: bool, seconds: float) -> None:
    async def scenario(coordination: SimCoordination) -> None:
        store = coordination.store("a")
        session = await store.open_session(9_000)
        await store.txn([], [Write("/things/mine", b"1", session)])
        in_flight = asyncio.ensure_future(store.txn([], [Write("/things/last", b"1")]))
        await asyncio.sleep(0)
        coordination.crash("a", seen_at_once=seen_at_once)
        in_flight.cancel()
        with pytest.raises(Unavailable):
            await store.get("/things/mine")
        await asyncio.sleep(seconds)
        assert value_of(coordination, "/things/mine") is None
        assert value_of(coordination, "/things/last") == b"1"  # what was sent arrives
        following = coordination.store("a")
        assert await following.get("/things/last") is not None

    simulate(scenario)


def test_a_store_that_nobody_reaches_answers_all_again_afterwards() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        stores = [coordination.store(name) for name in "abc"]
        coordination.cut()
        outcomes = await asyncio.gather(*(store.get("/things/a") for store in stores), return_exceptions=True)
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
        coordination.heal()
        assert await asyncio.gather(*(store.get("/things/a") for store in stores)) == [None] * 3

    assert simulate(scenario).injected == {"cut": 3}


# --- everything at once


class Cluster:
    """Three processes that count and hold a key each, while everything happens to them; and who looks on."""

    def __init__(self, coordination: SimCoordination) -> None:
        self.coordination = coordination
        self.random = coordination.loop.random_for("cluster")  # type: ignore[attr-defined]
        self.acknowledged = 0
        self.unknown = 0
        self.held = 0
        self.owners: dict[str, list[SimSession]] = {}
        self.running: dict[str, list[asyncio.Task[None]]] = {}
        coordination.space.follow(self._changed)

    def _changed(self, changed: Changed) -> None:
        """No key of a session vanishes while a process that lives believes in that session."""
        for key, entry in changed.items():
            if entry is None and key.startswith("/held/"):
                name = key.rpartition("/")[2]
                for session in self.owners.get(name, []):
                    assert session.is_lost, (
                        f"{key} is gone at {self.coordination.loop.time()} before {session.deadline}"
                    )

    async def count(self, store: SimStore) -> None:
        while True:
            try:
                entry = await store.get("/things/counter")
                check = Check("/things/counter", entry.version if entry else ABSENT)
                following = b"%d" % (int(entry.value) + 1 if entry else 1)
                if await store.txn([check], [Write("/things/counter", following)]) is not None:
                    self.acknowledged += 1
            except Unavailable:
                self.unknown += 1
            await asyncio.sleep(self.random.uniform(0, 0.2))

    async def hold(self, store: SimStore) -> None:
        while True:
            session = None
            try:
                session = await store.open_session(9_000)
                key = f"/held/{store.name}"
                if await store.txn([Check(key, ABSENT)], [Write(key, b"", session)]) is not None:
                    self.owners[store.name] = [session]
                    self.held += 1
                    await session.wait_until_lost()
            except Unavailable:
                pass
            # Nobody knows whether the key was written: with the session it is gone. A predecessor's expires by itself.
            if session is not None:
                await session.close()
            await asyncio.sleep(0.5)

    def start(self, name: str) -> None:
        store = self.coordination.store(name)
        self.owners[name] = []
        self.running[name] = [asyncio.ensure_future(work(store)) for work in (self.count, self.hold)]

    def kill(self, name: str) -> None:
        self.owners[name] = []
        for task in self.running.pop(name):
            task.cancel()
        self.coordination.crash(name)

    async def live(self, seconds: float) -> None:
        names = ["a", "b", "c"]
        for name in names:
            self.start(name)
        end = self.coordination.loop.time() + seconds
        while self.coordination.loop.time() < end:
            name = self.random.choice(names)
            match self.random.randrange(4):
                case 0:
                    self.coordination.cut(name)
                    await asyncio.sleep(self.random.uniform(0, 20))
                    self.coordination.heal(name)
                case 1:
                    self.kill(name)
                    await asyncio.sleep(self.random.uniform(0, 5))
                    self.start(name)
                case 2:
                    self.coordination.cut()
                    await asyncio.sleep(self.random.uniform(0, 3))
                    self.coordination.heal()
                case _:
                    await asyncio.sleep(self.random.uniform(0, 10))
        self.coordination.heal()
        for name in names:
            self.kill(name)
        await asyncio.sleep(30)  # what is late arrives, what is left expires


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_counting_is_right_and_no_session_ends_too_early(seed: int) -> None:
    found: list[Cluster] = []

    async def scenario(coordination: SimCoordination) -> None:
        cluster = Cluster(coordination)
        found.append(cluster)
        async with Follower(coordination.store("onlooker"), "/things") as follower:
            await cluster.live(120)
            coordination.faults = QUICK
            counted = await coordination.store("last").get("/things/counter")
            assert isinstance(counted, Entry)
            assert cluster.acknowledged <= int(counted.value) <= cluster.acknowledged + cluster.unknown
            await follower.until(lambda seen: seen == {"/things/counter": counted.value})
        assert coordination.space.list("/held") == []

    coordination = simulate(scenario, NASTY, seed)
    assert found[0].acknowledged > 100
    assert found[0].held > 3
    assert {"slow", "late watch", "cut", "crash"} <= coordination.injected.keys()


def test_one_seed_gives_one_run_and_another_seed_another() -> None:
    async def scenario(coordination: SimCoordination) -> None:
        await Cluster(coordination).live(120)

    traces = [simulate(scenario, NASTY, seed).trace for seed in (1, 1, 2)]
    assert (traces[0].digest, traces[0].count) == (traces[1].digest, traces[1].count)
    assert traces[0].digest != traces[2].digest
