"""Processes around a served store: one that serves it, and one that holds a key in a session.

Run as a program: `serve DATABASE SOCKET` or `hold SOCKET KEY TTL_MS`. Each says one line when it is ready, and the
holder another when its session is lost.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tailrace.cluster.store import Write
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.served import ServedStore
from tailrace.stores.server import StoreServer

READY = "ready"
LOST = "lost"


class StoreProcess:
    """A process of this module; `async with` waits until it is ready, and ends it."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> StoreProcess:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.stores.store_process",
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert await self.next_line() == READY
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def next_line(self) -> str:
        """Its next line; empty if it has ended."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def stop(self) -> None:
        """Stop it as SIGSTOP does, and wait until it is."""
        self._process.send_signal(signal.SIGSTOP)
        while not self._is_stopped():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.001)

    def _is_stopped(self) -> bool:
        state = Path(f"/proc/{self._process.pid}/stat").read_text()
        return state.rpartition(")")[2].split()[0] == "T"

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


async def _serve(database: str, socket: str) -> None:
    server = StoreServer(database, socket, SystemClock())
    await server.start()
    print(READY, flush=True)
    await asyncio.Event().wait()


async def _hold(socket: str, key: str, ttl_ms: str) -> None:
    store = ServedStore(socket, SystemClock())
    session = await store.open_session(int(ttl_ms))
    await store.txn([], [Write(key, b"held", session)])
    print(READY, flush=True)
    await session.wait_until_lost()
    print(LOST, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    asyncio.run(_serve(*arguments) if command == "serve" else _hold(*arguments))
