"""A cable between a client and a server: tests make it silent, break it and mend it while both ends run.

Owns a listening socket (TCP on a free loopback port, or a Unix socket) and passes bytes on to the real server. While it
is cut, connections stay open and new ones are accepted, but nothing passes: what a network without answers looks like.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tailrace.stores.frames import SocketPath, new_socket

_CHUNK_BYTES = 1 << 16


class Cable:
    """All connections of one client to one server."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._whole = asyncio.Event()
        self._whole.set()
        self._pairs: dict[asyncio.Task[None], None] = {}

    async def listen(self, path: Path | None = None) -> tuple[str, int]:
        """Take connections at a Unix socket, or at the loopback port that is returned."""
        if path is not None:
            listening = new_socket()
            with SocketPath(str(path)) as bound:
                listening.bind(bound)
            self._server = await asyncio.start_unix_server(self._accept, sock=listening)
            return str(path), 0
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def cut(self) -> None:
        """Pass nothing on from now on; neither side is notified."""
        self._whole.clear()

    def mend(self) -> None:
        """Pass on what waits, and everything that follows."""
        self._whole.set()

    async def reset(self) -> None:
        """Break every connection; new ones are accepted at once."""
        tasks = list(self._pairs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Break everything permanently."""
        if self._server is not None:
            self._server.close()
        await self.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs[task] = None
        try:
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.pop(task, None)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        if isinstance(self._target, Path):
            far = new_socket()
            try:
                with SocketPath(str(self._target)) as path:
                    await asyncio.get_running_loop().sock_connect(far, path)
            except BaseException:
                far.close()
                raise
            far_reader, far_writer = await asyncio.open_unix_connection(sock=far)
        else:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            there = asyncio.ensure_future(self._pass_on(reader, far_writer))
            back = asyncio.ensure_future(self._pass_on(far_reader, writer))
            try:
                await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        finally:
            far_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
