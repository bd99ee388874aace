from __future__ import annotations

import asyncio
import math

from tailrace.stores.sessions import HeldSession, Leases
from tailrace.testing import loop as sim
from tailrace.testing.clock import SimClock


class StoppableClock(SimClock):
    """A clock that has gone on while the loop could not run."""

    missed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.missed


def test_a_deadline_that_has_passed_cannot_be_put_off() -> None:
    async def test() -> None:
        session = HeldSession(SimClock(sim.current()), 10.0)
        waiting = asyncio.ensure_future(session.wait_until_lost())
        await asyncio.sleep(9.9)
        assert not session.is_lost
        session.extend(20.0)
        session.extend(15.0)  # an answer to an older renewal that came late
        assert session.deadline == 20.0
        await asyncio.sleep(10.0)
        assert not waiting.done()
        await waiting
        assert sim.current().time() == 20.0
        session.extend(30.0)
        assert session.is_lost
        assert session.deadline == 20.0

    sim.run(test(), seed=0)


def test_who_was_stopped_knows_by_the_clock_before_any_timer() -> None:
    async def test() -> None:
        clock = StoppableClock(sim.current())
        session = HeldSession(clock, 10.0)
        clock.missed = 11.0
        session.extend(25.0)  # the answer to a renewal that lay there meanwhile
        assert session.is_lost
        await session.wait_until_lost()

    sim.run(test(), seed=0)


def test_a_session_without_a_clock_ends_only_when_it_is_ended() -> None:
    async def test() -> None:
        session = HeldSession(None, math.inf)
        waiting = [asyncio.ensure_future(session.wait_until_lost()) for _ in range(2)]
        await asyncio.sleep(100_000)
        assert not session.is_lost
        session.lose()
        await asyncio.gather(*waiting)
        assert session.is_lost
        assert session.deadline == -math.inf

    sim.run(test(), seed=0)


def test_a_lease_ends_a_time_to_live_after_its_last_renewal() -> None:
    async def test() -> None:
        expired: list[tuple[float, int]] = []
        leases = Leases(SimClock(sim.current()), lambda lease: expired.append((sim.current().time(), lease)))
        leases.grant(1, 9_000)
        leases.grant(2, 3_000)
        leases.grant(3, 5_000)
        for _ in range(4):
            await asyncio.sleep(2)
            assert leases.renew(1)
        leases.end(3)  # long expired
        await asyncio.sleep(20)
        assert expired == [(3.0, 2), (5.0, 3), (17.0, 1)]
        assert not leases.renew(1)
        leases.grant(4, 1_000)
        leases.grant(5, 1_000)
        leases.end(4)
        leases.close()
        await asyncio.sleep(20)
        assert len(expired) == 3

    sim.run(test(), seed=0)


def test_a_store_that_did_not_run_gives_everybody_another_time_to_live() -> None:
    async def test() -> None:
        clock = StoppableClock(sim.current())
        expired: list[int] = []
        leases = Leases(clock, expired.append)
        leases.grant(1, 9_000)
        leases.grant(2, 9_000)
        await asyncio.sleep(8.9)
        clock.missed = 60.0
        await asyncio.sleep(8.0)  # the timers found that they were a minute late
        assert expired == []
        assert leases.renew(1)
        await asyncio.sleep(8.0)
        assert expired == [2]
        await asyncio.sleep(8.0)
        assert expired == [2, 1]

    sim.run(test(), seed=0)
