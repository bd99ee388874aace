"""The watchdog of the event loop: it reports a step that computes for long, with its stack, but not one that waits."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from tailrace.runtime.system.watchdog import LoopWatchdog

THRESHOLD_MS = 50


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_step_that_computes_for_long_is_told_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> int:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), THRESHOLD_MS)
        watchdog.start()
        compute(10 * THRESHOLD_MS / 1000)
        await asyncio.sleep(0.001)
        watchdog.stop()
        return watchdog.slow_steps

    with caplog.at_level(logging.WARNING, "tailrace.loop"):
        assert asyncio.run(test()) == 1
    assert "ms of CPU time" in caplog.text
    assert "> compute (runtime/test_watchdog.py:" in caplog.text


def test_waiting_and_many_short_steps_are_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> int:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), 10 * THRESHOLD_MS)
        watchdog.start()
        time.sleep(3 * THRESHOLD_MS / 1000)  # noqa: ASYNC251  it takes no CPU time
        for _ in range(200):
            compute(0.005)
            await asyncio.sleep(0)
        watchdog.stop()
        return watchdog.slow_steps

    assert asyncio.run(test()) == 0
    assert "CPU time" not in caplog.text
