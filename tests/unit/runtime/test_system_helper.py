"""The helper process: there when it is needed, gone with its broker or when idle, and of low priority."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.runtime.helper import HelperError
from tailrace.runtime.system.helper import SystemHelper
from tests.support import helper_functions as functions

#: How long another process may take to do what it is sure to do.
_PATIENCE_SECONDS = 30.0


def run(test: Callable[[SystemHelper], Coroutine[Any, Any, None]], **options: float) -> None:
    async def main() -> None:
        helper = SystemHelper(**options)
        try:
            await test(helper)
        finally:
            await helper.close()

    asyncio.run(main())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


def test_there_is_no_process_before_there_is_work() -> None:
    async def test(helper: SystemHelper) -> None:
        assert helper.pid is None
        assert await helper.run(functions.add, 1, 2) == 3
        first = helper.pid
        assert first is not None
        assert await helper.run(functions.add, 1, 2) == 3
        assert helper.pid == first

    run(test)


def test_it_gives_way_to_everybody_else() -> None:
    async def test(helper: SystemHelper) -> None:
        assert await helper.run(functions.niceness) == min(19, os.nice(0) + 10)

    run(test)


def test_one_that_works_only_when_processors_are_idle_gives_way_at_once() -> None:
    async def test() -> None:
        helper = SystemHelper(only_when_idle=True)
        try:
            assert await helper.run(functions.policy) == os.SCHED_IDLE
        finally:
            await helper.close()

    asyncio.run(test())


def test_a_killed_process_fails_its_calls_and_the_next_call_starts_another(tmp_path: Path) -> None:
    async def test(helper: SystemHelper) -> None:
        waiting = [asyncio.ensure_future(helper.run(functions.wait_for_file, str(tmp_path / "x"))) for _ in range(2)]
        assert await helper.run(functions.add, 1, 1) == 2
        first = helper.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        for call in waiting:
            with pytest.raises(HelperError, match="killed by signal 9"):
                await call
        assert await helper.run(functions.add, 1, 1) == 2
        assert helper.pid != first

    run(test)


def test_a_long_call_does_not_hold_up_a_short_one(tmp_path: Path) -> None:
    async def test(helper: SystemHelper) -> None:
        long = asyncio.ensure_future(helper.run(functions.wait_for_file, str(tmp_path / "x")))
        assert await helper.run(functions.add, 1, 1) == 2
        assert not long.done()
        (tmp_path / "x").touch()
        assert await long == "seen"

    run(test)


def test_nobody_needs_to_wait_for_an_answer(tmp_path: Path) -> None:
    async def test(helper: SystemHelper) -> None:
        call = asyncio.ensure_future(helper.run(functions.wait_for_file, str(tmp_path / "x")))
        assert await helper.run(functions.add, 1, 1) == 2
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (tmp_path / "x").touch()
        assert await helper.run(functions.add, 1, 1) == 2

    run(test)


def test_an_idle_process_is_let_go_and_comes_back() -> None:
    async def test(helper: SystemHelper) -> None:
        assert await helper.run(functions.add, 1, 1) == 2
        first = helper.pid
        assert first is not None
        await until(lambda: not is_running(first))
        assert helper.pid is None
        assert await helper.run(functions.add, 1, 1) == 2

    run(test, idle_seconds=0.05)


def test_after_its_end_there_is_no_other(tmp_path: Path) -> None:
    async def test(helper: SystemHelper) -> None:
        call = asyncio.ensure_future(helper.run(functions.wait_for_file, str(tmp_path / "x")))
        assert await helper.run(functions.add, 1, 1) == 2
        pid = helper.pid
        assert pid is not None
        await helper.close()
        assert not is_running(pid)
        with pytest.raises(HelperError):
            await call
        with pytest.raises(HelperError, match="stopping"):
            await helper.run(functions.add, 1, 1)

    run(test)


def test_an_error_that_cannot_travel_arrives_as_what_it_says() -> None:
    async def test(helper: SystemHelper) -> None:
        with pytest.raises(TailraceError, match="KafkaError: it is broken"):
            await helper.run(functions.refuse_in_kafkas_way, "it is broken")

    run(test)


def test_its_reads_and_writes_stay_below_a_rate(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))

    async def test(helper: SystemHelper) -> None:
        path = str(tmp_path / "file")
        seconds = await helper.run_on_disk(functions.read_twice, path, 100_000, bytes_per_second=1_000_000.0)
        assert seconds >= 0.19

    run(test)


_BROKER = """
import asyncio, signal
from tailrace.runtime.system.helper import SystemHelper
from tests.support import helper_functions as functions

async def main():
    helper = SystemHelper()
    waiting = asyncio.ensure_future(helper.run(functions.wait_for_file, "/nowhere/at/all"))
    await helper.run(functions.add, 1, 1)
    print(helper.pid, flush=True)
    await waiting

# Whoever started the tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_broker_however_that_ends(number: signal.Signals) -> None:
    root = Path(__file__).parents[3]
    broker = subprocess.Popen(
        [sys.executable, "-c", _BROKER], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert broker.stdout is not None
    with broker.stdout:
        pid = int(broker.stdout.readline())
        assert is_running(pid)
        try:
            broker.send_signal(number)
            broker.wait(_PATIENCE_SECONDS)
        finally:
            broker.kill()
            broker.wait()
    wait_until(lambda: not is_running(pid))
