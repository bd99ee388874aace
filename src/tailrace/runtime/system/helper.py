"""The helper as a process of its own: one worker, started at the first call, ended with the broker or when idle.

Owns the process and the socket to it. The worker ends when that socket closes and, should the broker be killed,
by a signal of the kernel. It runs its calls side by side, so a long one does not hold up a short one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from tailrace.runtime.helper import HelperError
from tailrace.runtime.system import helper_worker

logger = logging.getLogger("tailrace.runtime")

T = TypeVar("T")

_FRAME = struct.Struct(helper_worker.FRAME)
_IDLE_SECONDS = 60.0


class SystemHelper:
    """A worker process that comes and goes with the work there is."""

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._worker: _Worker | None = None
        self._starting: asyncio.Lock | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        worker = self._worker
        return worker.process.pid if worker is not None and worker.is_alive else None

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._call(function, arguments, False, None)

    async def run_on_disk(
        self, function: Callable[..., T], *arguments: object, bytes_per_second: float | None = None
    ) -> T:
        return await self._call(function, arguments, True, bytes_per_second)

    async def _call(self, function: Callable[..., T], arguments: tuple[object, ...], on_disk: bool, rate: Any) -> T:
        payload = pickle.dumps((function.__module__, function.__qualname__, arguments, on_disk, rate))
        worker = await self._started()
        answer: T = await worker.ask(payload)
        return answer

    async def _started(self) -> _Worker:
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._is_closed:
                raise HelperError("the helper process is not started any more: the broker is stopping")
            if self._worker is None or not self._worker.is_alive:
                self._worker = await _Worker.start(self._idle_seconds)
            return self._worker

    async def close(self) -> None:
        self._is_closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()


class _Worker:
    """One process, from its start to its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        idle_seconds: float,
    ) -> None:
        self.process = process
        self.is_alive = True
        self._reader = reader
        self._writer = writer
        self._idle_seconds = idle_seconds
        self._is_wanted = True
        self._calls = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._receiving = asyncio.get_running_loop().create_task(self._receive(), name="helper process")

    @classmethod
    async def start(cls, idle_seconds: float) -> _Worker:
        """Start a process; it gets this one's module path, so that it finds the same functions."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # From the loop's own thread: the kernel's signal is tied to the thread that starts the process.
                process = subprocess.Popen(  # noqa: ASYNC220  it takes a millisecond, once
                    [sys.executable, "-P", helper_worker.__file__, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
        except OSError as error:
            ours.close()
            raise HelperError(f"the helper process cannot be started: {error.strerror}") from error
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            process.wait()
            raise
        worker = cls(process, reader, writer, idle_seconds)
        worker._send(0, pickle.dumps(sys.path))
        return worker

    def _send(self, number: int, payload: bytes) -> None:
        self._writer.write(_FRAME.pack(number, len(payload)))
        self._writer.write(payload)

    async def ask(self, payload: bytes) -> Any:
        """Hand over one call and wait for its answer."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._calls += 1
        number = self._calls
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, payload)
            return await future
        finally:
            self._waiting.pop(number, None)
            if self.is_alive and not self._waiting and self._idle_timer is None:
                loop = asyncio.get_running_loop()
                self._idle_timer = loop.call_later(self._idle_seconds, self._let_go)

    def _let_go(self) -> None:
        """Nobody has needed it for a while: its memory is worth more than the next start."""
        if not self._waiting:
            self._is_wanted = self.is_alive = False
            self._writer.close()

    async def _receive(self) -> None:
        try:
            while True:
                number, size = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
                is_answer, content = pickle.loads(await self._reader.readexactly(size))
                future = self._waiting.get(number)
                if future is None or future.done():
                    continue
                if is_answer:
                    future.set_result(content)
                else:
                    future.set_exception(content)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.is_alive = False
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._writer.close()
            if self._is_wanted:
                self.process.kill()
            code = await self._reap()
            if self._is_wanted:
                logger.warning("the helper process %d ended (%s)", self.process.pid, _reason(code))
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(HelperError(f"the helper process ended ({_reason(code)})"))

    async def _reap(self) -> int:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self.process.wait)
        except (asyncio.CancelledError, RuntimeError):  # the loop itself is being closed
            self.process.kill()
            return self.process.wait()

    async def end(self) -> None:
        """End the process at once: what it was at is worth nothing unfinished."""
        self._is_wanted = False
        if self.process.returncode is None:
            self.process.kill()
        self._writer.close()
        await asyncio.wait([self._receiving])


def _reason(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
