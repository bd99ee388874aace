from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tailrace.testing import loop as sim
from tailrace.testing.clock import SimClock


def test_an_hour_passes_at_once() -> None:
    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert sim.run(wait(), seed=1) == 3600
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("start", [0.0, 0.1, 12_345.678, 9_999_999.9])
def test_a_timer_fires_at_exactly_its_time(start: float) -> None:
    async def scenario() -> list[tuple[float, float]]:
        loop = sim.current()
        await asyncio.sleep(start)
        fired: list[tuple[float, float]] = []
        for number in range(100):
            when = loop.time() + 0.001 * number / 7
            loop.call_at(when, lambda due: fired.append((due, loop.time())), when)
        await asyncio.sleep(1)
        return fired

    fired = sim.run(scenario(), seed=1, max_virtual_seconds=1e9)
    assert len(fired) == 100
    assert fired == sorted(fired)
    assert all(due == now for due, now in fired)


def test_timers_of_one_moment_fire_in_the_order_they_were_set() -> None:
    async def scenario() -> list[int]:
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        handles = [loop.call_later(1, fired.append, number) for number in range(500)]
        for handle in handles[::3]:
            handle.cancel()
        await asyncio.sleep(1)
        return fired

    assert sim.run(scenario(), seed=1) == [number for number in range(500) if number % 3]


def test_work_that_is_ready_runs_before_time_moves() -> None:
    async def scenario() -> list[str]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.000001, order.append, "timer")

        def again(left: int) -> None:
            order.append("ready")
            if left:
                loop.call_soon(again, left - 1)

        again(50)
        await asyncio.sleep(1)
        return order

    assert sim.run(scenario(), seed=1) == ["ready"] * 51 + ["timer"]


def test_a_run_that_cannot_go_on_names_who_waits_where() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        await asyncio.sleep(5)
        await asyncio.create_task(wait_for_nobody(), name="the-waiter")

    with pytest.raises(sim.Deadlock, match=r"at 5\.0") as caught:
        sim.run(scenario(), seed=1)
    assert "the-waiter in " in str(caught.value)
    assert "wait_for_nobody" in str(caught.value)


def test_a_deadlock_tells_of_the_failure_that_caused_it() -> None:
    async def scenario() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def fail_to_answer() -> None:
            raise ValueError("the cause")

        task = asyncio.create_task(fail_to_answer())
        await answer
        await task

    with pytest.raises(sim.Deadlock, match="the cause"):
        sim.run(scenario(), seed=1)


def test_spinning_without_time_passing_ends() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - this is what must be found
            await asyncio.sleep(0)

    with pytest.raises(sim.Livelock, match="no time passed"):
        sim.SimLoop(1, max_steps_at_once=1000).run(spin())


def test_too_many_steps_or_too_much_virtual_time_end_a_run() -> None:
    async def poll() -> None:
        while True:  # noqa: ASYNC110 - this is what must be found
            await asyncio.sleep(1)

    with pytest.raises(sim.Livelock, match="1000 steps"):
        sim.run(poll(), seed=1, max_steps=1000)
    with pytest.raises(sim.Livelock, match="60 virtual s"):
        sim.run(poll(), seed=1, max_virtual_seconds=60)


def test_an_exception_that_nobody_retrieved_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("in a task")

    def fail_in_callback() -> None:
        raise KeyError("in a callback")

    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(fail_in_callback)
        kept = asyncio.create_task(fail())
        asyncio.get_running_loop().create_future().set_exception(OSError("in a future"))
        await asyncio.sleep(1)
        assert kept.done()

    with pytest.raises(ExceptionGroup) as caught:
        sim.run(scenario(), seed=1)
    assert sorted(type(error).__name__ for error in caught.value.exceptions) == ["KeyError", "OSError", "ValueError"]


def test_an_exception_that_was_retrieved_is_nobodys_business() -> None:
    async def fail() -> None:
        raise ValueError

    async def scenario() -> str:
        results = await asyncio.gather(fail(), fail(), return_exceptions=True)
        late = asyncio.create_task(fail())
        await asyncio.sleep(1)
        assert isinstance(late.exception(), ValueError)
        return ",".join(type(result).__name__ for result in results)

    assert sim.run(scenario(), seed=1) == "ValueError,ValueError"


def test_the_runs_own_failure_comes_first_and_notes_the_others() -> None:
    async def fail() -> None:
        raise ValueError("other")

    async def scenario() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        assert task.done()
        raise KeyError("own")

    with pytest.raises(KeyError) as caught:
        sim.run(scenario(), seed=1)
    assert "other" in "".join(caught.value.__notes__)


def test_tasks_that_are_left_are_cancelled_in_the_order_they_were_made() -> None:
    ended: list[str] = []

    async def stay(name: str) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(0.1)
            ended.append(name)

    async def scenario() -> None:
        for name in "abcdef":
            asyncio.create_task(stay(name))  # noqa: RUF006 - the loop keeps it
        await asyncio.sleep(1)

    sim.run(scenario(), seed=1)
    assert ended == list("abcdef")


def test_threads_and_sockets_are_refused() -> None:
    async def scenario() -> None:
        loop = sim.current()
        with pytest.raises(sim.SimulationError, match=r"Disk\.offload"):
            loop.run_in_executor(None, print)
        with pytest.raises(sim.SimulationError, match=r"Disk\.offload"):
            await asyncio.to_thread(print)
        with pytest.raises(sim.SimulationError, match="Network"):
            loop.add_reader(0, print)
        with pytest.raises(sim.SimulationError, match="Network"):
            loop.add_writer(0, print)

    sim.run(scenario(), seed=1)


def test_only_the_loops_own_thread_may_call_into_it() -> None:
    async def scenario() -> list[str]:
        loop, seen = sim.current(), list[str]()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(seen.append, "called from elsewhere")
            except sim.SimulationError as error:
                seen.append(type(error).__name__)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        loop.call_soon_threadsafe(seen.append, "called from here")
        await asyncio.sleep(0)
        return seen

    assert sim.run(scenario(), seed=1) == ["SimulationError", "called from here"]


def test_each_purpose_has_random_numbers_of_its_own_from_the_seed() -> None:
    def draws(seed: int, purpose: str) -> list[float]:
        loop = sim.SimLoop(seed)
        loop.close()
        random = loop.random_for(purpose)
        return [random.random() for _ in range(5)]

    assert draws(1, "disk") == draws(1, "disk")
    assert draws(1, "disk") != draws(1, "network")
    assert draws(1, "disk") != draws(2, "disk")


def test_tasks_are_numbered_alike_in_every_run() -> None:
    async def scenario() -> list[str]:
        async def name() -> str:
            task = asyncio.current_task()
            assert task is not None
            return task.get_name()

        return await asyncio.gather(name(), name())

    assert sim.run(scenario(), seed=1) == sim.run(scenario(), seed=1) == ["task-2", "task-3"]


def test_a_clock_shows_virtual_time_and_its_own_error() -> None:
    async def scenario() -> None:
        loop = sim.current()
        true, wrong = SimClock(loop, 1000), SimClock(loop, 1000, skew_ms=-300)
        assert (true.wall_ms(), wrong.wall_ms(), true.monotonic()) == (1000, 700, 0)
        await asyncio.sleep(1.001)
        assert (true.wall_ms(), wrong.wall_ms(), true.monotonic()) == (2001, 1701, 1.001)
        wrong.jump(-1000)
        assert (wrong.wall_ms(), wrong.monotonic()) == (701, 1.001)
        wrong.skew_ms = 0
        assert wrong.wall_ms() == true.wall_ms()

    sim.run(scenario(), seed=1)


def test_a_clock_that_drifts_counts_more_or_fewer_seconds() -> None:
    async def scenario() -> tuple[float, float]:
        fast, slow = SimClock(sim.current()), SimClock(sim.current())
        fast.rate, slow.rate = 1.5, 0.5
        await asyncio.sleep(10)
        return fast.monotonic(), slow.monotonic()

    assert sim.run(scenario(), seed=1) == (15.0, 5.0)


def test_time_passes_however_little_is_left_to_wait() -> None:
    async def scenario() -> None:
        loop = sim.current()
        await asyncio.sleep(1000)
        began = loop.time()
        for _ in range(5):
            await asyncio.sleep(1e-16)
        assert loop.time() > began

    sim.run(scenario(), seed=1)
