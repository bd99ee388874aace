"""A process of a simulation runs, pauses and ends as a whole."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.process import Process, charge, current_process


class Ticker:
    """Counts seconds in a process, in a task and by a timer."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.process = Process("ticker")
        self.ticks: list[float] = []
        self.timed: list[float] = []
        self.has_cleaned_up = False
        loop.create_task(self._run(), context=self.process.context.copy())

    async def _run(self) -> None:
        self.loop.call_later(2.5, self._timer)
        try:
            while True:
                await asyncio.sleep(1)
                assert current_process() is self.process
                self.ticks.append(self.loop.time())
        finally:
            self.has_cleaned_up = True

    def _timer(self) -> None:
        self.timed.append(self.loop.time())


def run(scenario: Any) -> None:
    loop = SimLoop(1)
    loop.run(scenario(loop))


def test_a_paused_process_does_nothing_and_then_all_that_was_due() -> None:
    async def scenario(loop: SimLoop) -> None:
        ticker = Ticker(loop)
        await asyncio.sleep(1.5)
        ticker.process.pause()
        await asyncio.sleep(5)
        assert ticker.ticks == [1.0]
        assert ticker.timed == []
        loop.resume(ticker.process)
        await asyncio.sleep(2)
        assert ticker.ticks == [1.0, 6.5, 7.5]
        assert ticker.timed == [6.5]
        loop.end(ticker.process)

    run(scenario)


@pytest.mark.parametrize("is_paused", [False, True])
def test_nothing_of_an_ended_process_runs_again_not_even_what_cleans_up(is_paused: bool) -> None:
    async def scenario(loop: SimLoop) -> None:
        ticker = Ticker(loop)
        await asyncio.sleep(1.5)
        if is_paused:
            ticker.process.pause()
            await asyncio.sleep(3)
        ticks = list(ticker.ticks)
        loop.end(ticker.process)
        await asyncio.sleep(10)
        assert ticker.ticks == ticks
        assert not ticker.has_cleaned_up
        assert loop.pending_tasks() == [asyncio.current_task()]

    run(scenario)


def test_a_failure_in_a_process_that_has_ended_is_nobodys() -> None:
    async def fail() -> None:
        raise RuntimeError("too late")

    async def scenario(loop: SimLoop) -> None:
        process = Process("failing")
        loop.create_task(fail(), context=process.context)
        await asyncio.sleep(1)
        loop.end(process)

    async def alive(loop: SimLoop) -> None:
        loop.create_task(fail())
        await asyncio.sleep(1)

    run(scenario)
    with pytest.raises(BaseExceptionGroup, match="never retrieved"):
        run(alive)


class Echo:
    """Sends back what it receives."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._buffer = bytearray(100)
        self.received_bytes = bytearray()

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self.received_bytes += self._buffer[:size]
        self._transport.send([bytes(self._buffer[:size])])

    def drained(self) -> None: ...

    def disconnected(self, reason: Exception | None) -> None: ...


class Sink(Echo):
    def received(self, size: int) -> None:
        self.received_bytes += self._buffer[:size]


def test_what_is_sent_to_a_paused_process_waits_and_its_host_still_takes_connections() -> None:
    async def scenario(loop: SimLoop) -> None:
        network = SimNetwork(loop, loop.random_for("network"))
        server, client = network.host("server"), network.host("client")
        process = server.process = Process("server")
        await server.listen("server", 1, Echo)
        process.pause()
        sinks: list[Sink] = []

        def attach(transport: Any) -> Sink:
            sinks.append(Sink(transport))
            return sinks[-1]

        transport = await client.connect("server", 1, attach)
        transport.send([b"hello"])
        await asyncio.sleep(30)
        assert not sinks[0].received_bytes
        loop.resume(process)
        await asyncio.sleep(1)
        assert sinks[0].received_bytes == b"hello"
        transport.close()
        await asyncio.sleep(1)

    run(scenario)


def test_a_stalled_host_answers_but_nothing_passes_on_what_it_opened() -> None:
    async def scenario(loop: SimLoop) -> None:
        network = SimNetwork(loop, loop.random_for("network"))
        one, other = network.host("one"), network.host("other")
        await one.listen("one", 1, Echo)
        await other.listen("other", 1, Echo)
        sinks: list[Sink] = []

        def attach(transport: Any) -> Sink:
            sinks.append(Sink(transport))
            return sinks[-1]

        outwards = await one.connect("other", 1, attach)
        inwards = await other.connect("one", 1, attach)
        network.stall("one")
        outwards.send([b"out"])
        inwards.send([b"in"])
        await asyncio.sleep(10)
        assert [bytes(sink.received_bytes) for sink in sinks] == [b"", b"in"]
        network.unstall("one")
        await asyncio.sleep(1)
        assert [bytes(sink.received_bytes) for sink in sinks] == [b"out", b"in"]
        outwards.close()
        inwards.close()
        await asyncio.sleep(1)

    run(scenario)


def test_timers_of_a_suspended_machine_do_not_count_the_time_in_which_it_slept() -> None:
    async def scenario(loop: SimLoop) -> None:
        ticker = Ticker(loop)
        await asyncio.sleep(1.5)
        ticker.process.pause()
        await asyncio.sleep(5)
        loop.wake(ticker.process, 5)
        await asyncio.sleep(2)
        assert ticker.ticks == [1.0, 7.0, 8.0]
        assert ticker.timed == [7.5]
        loop.end(ticker.process)

    run(scenario)


def test_a_process_is_busy_for_as_long_as_its_step_cost() -> None:
    async def scenario(loop: SimLoop) -> None:
        costs: list[float] = []
        loop.on_costly_step = lambda process, seconds: costs.append(seconds)
        ticker = Ticker(loop)
        ticker.process.is_charged = True
        loop.call_later(0.5, lambda: charge(2.25), context=ticker.process.context.copy())
        loop.call_later(0.5, lambda: charge(100))  # of no process
        await asyncio.sleep(4)
        assert costs == [2.25]
        assert ticker.ticks == [2.75, 3.75]
        assert ticker.timed == [2.75]
        loop.end(ticker.process)

    run(scenario)


def test_a_process_that_is_paused_while_it_is_busy_goes_on_when_both_are_over() -> None:
    async def scenario(loop: SimLoop) -> None:
        ticker = Ticker(loop)
        ticker.process.is_charged = True
        loop.call_later(0.5, lambda: charge(1), context=ticker.process.context.copy())
        await asyncio.sleep(1.25)
        ticker.process.pause()
        await asyncio.sleep(2)
        assert ticker.ticks == []
        loop.resume(ticker.process)
        await asyncio.sleep(0.5)
        assert ticker.ticks == [3.25]
        loop.end(ticker.process)

    run(scenario)


def test_a_process_that_ends_before_a_task_has_begun_leaves_no_coroutine_that_is_complained_of() -> None:
    async def scenario(loop: SimLoop) -> None:
        process = Process("server")

        async def answer() -> None: ...

        async def send(answered: Any) -> None:
            await answered

        loop.create_task(send(answer()), context=process.context.copy())
        loop.end(process)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(scenario)
        gc.collect()
    assert [str(each.message) for each in caught] == []
