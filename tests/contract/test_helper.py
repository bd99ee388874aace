"""What both helpers promise: answers, errors, a disk; and if a helper ends, only its calls fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tailrace.errors import StorageError
from tailrace.runtime.disk import FileRange
from tailrace.runtime.helper import Helper, HelperError
from tailrace.runtime.system.helper import SystemHelper
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tests.contract.world import World
from tests.support import helper_functions as functions


def run(world: World, test: Callable[[Helper], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        helper: Helper
        if isinstance(world.disk, SimDisk):
            assert isinstance(loop, SimLoop)
            helper = SimHelper(world.disk, loop.random_for("helper"))
        else:
            helper = SystemHelper()
        try:
            await test(helper)
        finally:
            await helper.close()

    world.run(main())


def test_a_call_gets_its_answer(world: World) -> None:
    async def test(helper: Helper) -> None:
        assert await helper.run(functions.add, 2, 3) == 5
        for value in (None, b"", b"x" * (3 << 20), {"a": (1, 2.5)}, [True, "ü"]):
            assert await helper.run(functions.echo, value) == value

    run(world, test)


def test_many_bytes_come_back_as_they_are_or_in_a_file(world: World) -> None:
    async def test(helper: Helper) -> None:
        kept = []
        for number in range(20):
            for size in (0, 1, 1 << 16, 3 << 20):
                answer = await helper.run_for_bytes(functions.repeat, bytes([number]), size)
                assert len(answer) == size
                kept.append((number, size, answer))
        for number, size, answer in kept:
            content = answer.file.read(answer.position, answer.size) if isinstance(answer, FileRange) else answer
            assert content == bytes([number]) * size
        with pytest.raises(StorageError, match=r"^no room$"):
            await helper.run_for_bytes(functions.refuse_bytes, "no room")

    run(world, test)


def test_calls_made_at_once_get_each_its_own_answer(world: World) -> None:
    async def test(helper: Helper) -> None:
        answers = await asyncio.gather(*(helper.run(functions.add, number, 1) for number in range(20)))
        assert answers == list(range(1, 21))

    run(world, test)


def test_what_a_function_raises_is_raised_where_it_was_called(world: World) -> None:
    async def test(helper: Helper) -> None:
        with pytest.raises(StorageError, match=r"^no room$"):
            await helper.run(functions.refuse, "no room")
        with pytest.raises(TypeError):
            await helper.run(functions.add, 1, "one")
        assert await helper.run(functions.add, 1, 1) == 2

    run(world, test)


def test_a_function_works_on_the_same_disk(world: World) -> None:
    async def test(helper: Helper) -> None:
        path = f"{world.root}/file"
        assert await helper.run_on_disk(functions.write, path, b"one") == 3
        assert world.disk.read_file(path) == b"one"
        world.disk.open(path).append(b"two")
        assert await helper.run_on_disk(functions.write, path, b"three", bytes_per_second=1e6) == 11
        with pytest.raises(StorageError, match="cannot open"):
            await helper.run_on_disk(functions.read_twice, f"{world.root}/missing", 1)

    run(world, test)


def test_a_helper_that_ends_fails_its_calls_and_serves_the_next(world: World) -> None:
    async def test(helper: Helper) -> None:
        if isinstance(helper, SimHelper):
            helper.kill_after(3)
            with pytest.raises(HelperError):
                await helper.run_on_disk(functions.write_slowly, f"{world.root}/file", 100)
            assert world.disk.read_file(f"{world.root}/file") == b"piece" * 2
        else:
            with pytest.raises(HelperError, match="exit code 7"):
                await helper.run(functions.end_process)
        assert await helper.run(functions.add, 1, 1) == 2

    run(world, test)
