"""The simulated helper of one host: works on the simulated disk, some virtual time after the call.

Owns when work begins, when it is answered and, if a test says so, when the end of the helper's process interrupts it.
Each call happens at one instant; all arguments and results are pickled, as for a real process.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from tailrace.runtime.disk import Buffer
from tailrace.runtime.helper import HelperError
from tailrace.testing.disk import SimDisk

T = TypeVar("T")


class _Killed(BaseException):
    """Ends a function in the middle, as the end of its process does."""


class SimHelper:
    """A helper port in virtual time."""

    def __init__(self, disk: SimDisk, random: Random, *, latency_seconds: tuple[float, float] = (0.0005, 0.2)) -> None:
        self.latency_seconds = latency_seconds
        self.calls = 0
        self._disk = disk
        self._random = random
        self._operations_left: int | None = None

    def kill_after(self, disk_operations: int) -> None:
        """Let the process die once, in the middle of its next work on the disk."""
        self._operations_left = disk_operations

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._call(lambda: function(*_as_sent(arguments)))

    async def run_for_bytes(self, function: Callable[..., Buffer], *arguments: object) -> Buffer:
        return await self.run(function, *arguments)

    async def run_on_disk(
        self, function: Callable[..., T], *arguments: object, bytes_per_second: float | None = None
    ) -> T:
        return await self._call(lambda: function(self._disk, *_as_sent(arguments)))

    def restart(self) -> None:
        """Do nothing: it has no process to end."""

    async def close(self) -> None:
        """Do nothing: it has no process to end."""

    async def _call(self, call: Callable[[], T]) -> T:
        self.calls += 1
        generation = self._disk.generation
        await asyncio.sleep(self._random.uniform(*self.latency_seconds))
        if self._disk.generation != generation:
            raise asyncio.CancelledError
        failure: Exception | None = None
        result: Any = None
        fault = None
        if self._operations_left is not None:
            fault = self._disk.fail(self._is_last_operation, error=lambda _: _Killed(), times=None)
        self._disk.is_charged_to_loop = False
        try:
            result = _as_sent(call())
        except _Killed:
            failure = HelperError("the helper process ended (killed by signal 9)")
        except Exception as error:  # noqa: BLE001  it is raised where the call was made
            failure = error
        finally:
            self._disk.is_charged_to_loop = True
            if fault is not None:
                fault.lift()
        await asyncio.sleep(self._random.uniform(*self.latency_seconds))
        if self._disk.generation != generation:
            raise asyncio.CancelledError
        if failure is not None:
            raise failure
        answer: T = result
        return answer

    def _is_last_operation(self, path: str) -> bool:
        if self._operations_left is None:
            return False
        self._operations_left -= 1
        if self._operations_left >= 0:
            return False
        self._operations_left = None
        return True


def _as_sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))
