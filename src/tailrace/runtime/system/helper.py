"""The helper as a process: one worker, started by the first call, ended with the broker or when idle.

Owns the process and the socket to it. The worker ends when that socket closes, or through a signal of the kernel if the
broker is killed. It runs calls concurrently, so a long call does not delay a short one.
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
from typing import Any, TypeVar, cast

from tailrace.runtime.disk import Buffer, FileRange
from tailrace.runtime.helper import HelperError
from tailrace.runtime.system import helper_worker
from tailrace.runtime.system.memory_file import MemoryFiles

logger = logging.getLogger("tailrace.runtime")

T = TypeVar("T")

_FRAME = struct.Struct(helper_worker.FRAME)
_SIZE = struct.Struct(helper_worker.SIZE)
#: How many large results can be sent from memory files at once; further results go through the socket.
_FILES = 8
_IDLE_SECONDS = 60.0


class SystemHelper:
    """A worker process, started and ended on demand.

    With `only_when_idle` it never slows down other processes, but may not run at all on a busy machine.
    """

    def __init__(self, idle_seconds: float = _IDLE_SECONDS, *, only_when_idle: bool = False) -> None:
        self._idle_seconds = idle_seconds
        self._only_when_idle = only_when_idle
        self._worker: _Worker | None = None
        self._starting: asyncio.Lock | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The worker's process id, if it runs."""
        worker = self._worker
        return worker.process.pid if worker is not None and worker.is_alive else None

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        worker = await self._started()
        answer: T = await worker.ask(function, arguments)
        return answer

    async def run_for_bytes(self, function: Callable[..., Buffer], *arguments: object) -> Buffer | FileRange:
        worker = await self._started()
        answer: Buffer | FileRange = await worker.ask(function, arguments, to_file=True)
        return answer

    async def run_on_disk(
        self, function: Callable[..., T], *arguments: object, bytes_per_second: float | None = None
    ) -> T:
        worker = await self._started()
        answer: T = await worker.ask(function, arguments, on_disk=True, bytes_per_second=bytes_per_second)
        return answer

    async def _started(self) -> _Worker:
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._is_closed:
                raise HelperError("cannot start the helper process: the broker is stopping")
            if self._worker is None or not self._worker.is_alive:
                self._worker = await _Worker.start(self._idle_seconds, self._only_when_idle)
            return self._worker

    def restart(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    async def close(self) -> None:
        self._is_closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()


class _Worker(asyncio.BufferedProtocol):
    """One process, from its start to its end.

    Results of several megabytes arrive during live traffic, so they are received into their final buffer and not
    copied. Results that are only passed on are not even received, but left in a memory file.
    """

    def __init__(self, process: subprocess.Popen[bytes], files: MemoryFiles, idle_seconds: float) -> None:
        self.process = process
        self._files = files
        #: The memory files assigned to pending calls, by call number.
        self._lent: dict[int, int] = {}
        self.is_alive = True
        self._transport: asyncio.WriteTransport | None = None
        self._idle_seconds = idle_seconds
        self._is_wanted = True
        self._calls = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._head = bytearray(_FRAME.size)
        #: The content after the head; None while the head is being received.
        self._content: bytearray | None = None
        self._missing = memoryview(self._head)
        loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = loop.create_future()
        self._ending = loop.create_task(self._end(), name="helper process")

    @classmethod
    async def start(cls, idle_seconds: float, only_when_idle: bool) -> _Worker:
        """Start a process with this one's module path, so that it finds the same functions."""
        ours, theirs = socket.socketpair()
        files = MemoryFiles(_FILES)
        try:
            with theirs:
                # From the loop's thread, because the kernel's signal depends on the thread that starts the process.
                process = subprocess.Popen(  # noqa: ASYNC220  it takes a millisecond, once
                    [
                        *(sys.executable, "-P", helper_worker.__file__),
                        *(str(theirs.fileno()), str(os.getpid()), str(int(only_when_idle))),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *files.descriptors),
                )
        except OSError as error:
            ours.close()
            files.close()
            raise HelperError(f"cannot start the helper process: {error.strerror}") from error
        loop = asyncio.get_running_loop()
        try:
            _, worker = await loop.create_unix_connection(lambda: cls(process, files, idle_seconds), sock=ours)
        except BaseException:
            ours.close()
            files.close()
            process.kill()
            process.wait()
            raise
        worker._send(0, pickle.dumps(sys.path))
        return worker

    def _send(self, number: int, payload: bytes) -> None:
        if self._transport is not None:
            self._transport.write(_FRAME.pack(number, len(payload), helper_worker.PICKLED) + payload)

    # --- what is received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._missing

    def buffer_updated(self, nbytes: int) -> None:
        self._missing = self._missing[nbytes:]
        if self._missing:
            return
        number, size, kind = _FRAME.unpack(self._head)
        if self._content is None:
            self._content = bytearray(size)
            self._missing = memoryview(self._content)
            if size:
                return
        content, self._content, self._missing = self._content, None, memoryview(self._head)
        lent = self._lent.pop(number, None)
        future = self._waiting.get(number)
        is_wanted = future is not None and not future.done()
        if lent is not None and (kind != helper_worker.IN_FILE or not is_wanted):
            self._files.give_back(lent)
        if future is None or not is_wanted:
            return
        if kind == helper_worker.BYTES:
            future.set_result(content)
        elif lent is not None and kind == helper_worker.IN_FILE:
            future.set_result(FileRange(self._files.take(lent), 0, *_SIZE.unpack(content)))
        elif kind == helper_worker.FAILED:
            future.set_exception(pickle.loads(content))
        else:
            future.set_result(pickle.loads(content))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    # --- its life

    async def ask(
        self,
        function: Callable[..., Any],
        arguments: tuple[object, ...],
        *,
        to_file: bool = False,
        on_disk: bool = False,
        bytes_per_second: float | None = None,
    ) -> Any:
        """Send a call and wait for its answer."""
        lent = self._files.lend() if to_file else None
        descriptor = helper_worker.NO_FILE if lent is None else lent
        call = function.__module__, function.__qualname__, arguments, on_disk, bytes_per_second
        payload = pickle.dumps((descriptor, *call))
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._calls += 1
        number = self._calls
        if lent is not None:
            self._lent[number] = lent
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
        """End the process after it was idle for a while, to free its memory."""
        if not self._waiting:
            self._is_wanted = self.is_alive = False
            self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _end(self) -> None:
        """Clean up after the connection has ended, for whatever reason."""
        try:
            await self._lost
        finally:
            self.is_alive = False
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._close()
            if self._is_wanted:
                self.process.kill()
            code = await self._reap()
            # Only now is it certain that the worker no longer writes to the files.
            self._files.close()
            for lent in self._lent.values():
                self._files.give_back(lent)
            self._lent.clear()
            if self._is_wanted:
                logger.warning("Helper process %d ended unexpectedly (%s)", self.process.pid, _reason(code))
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(HelperError(f"the helper process ended ({_reason(code)})"))

    async def _reap(self) -> int:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self.process.wait)
        except (asyncio.CancelledError, RuntimeError):  # the loop itself is being closed
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        """Kill the process without waiting for it; pending calls fail."""
        self.is_alive = False
        if self.process.returncode is None:
            self.process.kill()

    async def end(self) -> None:
        """Kill the process and wait: its unfinished work is worthless."""
        self._is_wanted = False
        if self.process.returncode is None:
            self.process.kill()
        self._close()
        await asyncio.wait([self._ending])


def _reason(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
