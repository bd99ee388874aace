"""The helper process: there when it is needed, gone with its broker or when idle, and of low priority."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.runtime.disk import FileRange
from tailrace.runtime.helper import HelperError
from tailrace.runtime.system.helper import SystemHelper
from tailrace.runtime.system.memory_file import MemoryFile
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


MANY = 1 << 20
#: More than there are files for.
ANSWERS = 30


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_bytes_are_left_in_files_that_are_used_again() -> None:
    async def test(helper: SystemHelper) -> None:
        numbers = set()
        for number in range(ANSWERS):
            answer = await helper.run_for_bytes(functions.repeat, bytes([number]), MANY)
            assert isinstance(answer, FileRange)
            assert isinstance(answer.file, MemoryFile)
            numbers.add(answer.file.fileno())
            assert answer.file.read(MANY - 1, 2) == bytes([number])
            del answer
        assert len(numbers) < ANSWERS

    run(test)


def test_where_no_file_is_left_bytes_are_received() -> None:
    async def test(helper: SystemHelper) -> None:
        answers = [await helper.run_for_bytes(functions.repeat, bytes([each]), MANY) for each in range(ANSWERS)]
        in_files = [answer for answer in answers if isinstance(answer, FileRange)]
        received = [answer for answer in answers if not isinstance(answer, FileRange)]
        assert in_files
        assert received
        for number, answer in enumerate(answers):
            content = answer.file.read(0, MANY) if isinstance(answer, FileRange) else answer
            assert content == bytes([number]) * MANY

    run(test)


def test_what_is_still_being_sent_stays_what_it_was_when_its_file_is_used_again() -> None:
    async def test(helper: SystemHelper) -> None:
        near, far = socket.socketpair()
        with near, far:
            far.settimeout(_PATIENCE_SECONDS)
            first = await helper.run_for_bytes(functions.repeat, b"1", MANY)
            assert isinstance(first, FileRange)
            assert isinstance(first.file, MemoryFile)
            near.setblocking(False)
            sent = os.sendfile(near.fileno(), first.file.fileno(), 0, MANY)
            assert 0 < sent < MANY
            del first
            for number in range(ANSWERS):
                await helper.run_for_bytes(functions.repeat, bytes([number]), MANY)
            received = b""
            while len(received) < sent:
                received += far.recv(sent)
            assert received == b"1" * sent

    run(test)


def test_the_file_of_an_answer_that_nobody_waits_for_is_free_again(tmp_path: Path) -> None:
    async def test(helper: SystemHelper) -> None:
        assert await helper.run(functions.add, 1, 1) == 2
        calls = [
            asyncio.ensure_future(
                helper.run_for_bytes(functions.repeat_when_there_is, str(tmp_path / "x"), b"late", MANY)
            )
            for _ in range(ANSWERS)
        ]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert isinstance(await helper.run_for_bytes(functions.repeat, b"x", MANY), bytearray)
        (tmp_path / "x").touch()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not isinstance(await helper.run_for_bytes(functions.repeat, b"x", MANY), FileRange):
            assert time.monotonic() < deadline

    run(test)


def test_files_are_closed_with_the_process_and_those_in_use_when_they_are_done_with() -> None:
    async def test() -> None:
        before = descriptors()
        helper = SystemHelper()
        try:
            answer = await helper.run_for_bytes(functions.repeat, b"x", MANY)
            assert isinstance(answer, FileRange)
            waiting = asyncio.ensure_future(helper.run_for_bytes(functions.repeat_when_there_is, "/nowhere", b"", 1))
            assert await helper.run(functions.add, 1, 1) == 2
        finally:
            await helper.close()
        with pytest.raises(HelperError):
            await waiting
        assert answer.file.read(0, 3) == b"xxx"
        assert descriptors() == before + 1
        del answer
        assert descriptors() == before

    # With what a loop opens for its first process and thread.
    asyncio.run(_with_everything_open(test))


async def _with_everything_open(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    helper = SystemHelper()
    await helper.run(functions.add, 1, 1)
    await helper.close()
    await test()


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

# A shell that starts the tests in the background ignores it.
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
