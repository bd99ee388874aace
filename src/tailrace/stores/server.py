"""Serves one process's SQLite store to other processes on the same machine, over a Unix socket.

In a local cluster the supervisor owns the file, and each broker is a client (`stores/served.py`). A client is alive
while its connection is open and it renews its sessions. A killed client is gone at once, a suspended one after its time
to live. If the server itself stops, its clients' sessions remain, and clients have one time to live to reconnect to its
successor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Sequence
from typing import Any

from tailrace import __version__
from tailrace.cluster.store import Check, Unavailable, Write
from tailrace.errors import StorageError, WireError
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks
from tailrace.stores import frames
from tailrace.stores.frames import Header
from tailrace.stores.sessions import Leases
from tailrace.stores.sqlite import SqliteSession, SqliteStore

logger = logging.getLogger("tailrace.stores")

_BACKLOG = 128


class StoreServer:
    """Serves the store in a file to every process that may open its socket."""

    def __init__(self, database: str, socket_path: str, clock: Clock) -> None:
        self.socket_path = os.path.abspath(socket_path)
        self.store = SqliteStore(database, keeps_sessions=True)
        self.tasks = Tasks(_report)
        self._leases = Leases(clock, self._expired)
        self._server: asyncio.Server | None = None
        #: The holder of each session; a session of an earlier server has none until its holder reconnects.
        self._holders: dict[int, _Connection] = {}
        self._connections: dict[_Connection, None] = {}

    async def start(self) -> None:
        """Accept clients; those of an earlier server have their time to live to reconnect."""
        for session in self.store.sessions:
            self._leases.grant(session.session_id, session.ttl_ms)
        listening = frames.new_socket()
        try:
            self._remove_leftover()
            with frames.SocketPath(self.socket_path) as path:
                # Only this user may connect, from the first moment.
                before = os.umask(0o177)
                try:
                    listening.bind(path)
                finally:
                    os.umask(before)
            self._server = await asyncio.start_unix_server(self._accept, sock=listening, backlog=_BACKLOG)
        except OSError as error:
            listening.close()
            raise StorageError(f"cannot serve the metadata store at {self.socket_path}: {error.strerror}") from error
        except StorageError:
            listening.close()
            raise

    def _remove_leftover(self) -> None:
        """Remove the socket of a dead server, and only of a dead one."""
        try:
            mode = os.stat(self.socket_path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):  # connecting would fail too, but it is not ours to remove
            raise StorageError(f"{self.socket_path} is in the way of the metadata store's socket: move it elsewhere")
        probe = frames.new_socket()
        try:
            with frames.SocketPath(self.socket_path) as path:
                probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(self.socket_path)
            return
        except BlockingIOError:  # it is alive, with a full backlog
            pass
        finally:
            probe.close()
        raise StorageError(
            f"{self.socket_path} is in use: stop the cluster that uses this directory, or choose another --data-dir"
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        self._connections[connection] = None
        try:
            await connection.serve()
        finally:
            del self._connections[connection]

    # --- sessions

    async def open_session(self, holder: _Connection, ttl_ms: int) -> int:
        session = await self.store.open_session(ttl_ms)
        self._leases.grant(session.session_id, ttl_ms)
        if holder.is_closed:
            await self.end_session(session.session_id)
        else:
            self._holders[session.session_id] = holder
        return session.session_id

    def renew_session(self, holder: _Connection, session_id: int) -> bool:
        """Extend a session; the client that renews it becomes its holder."""
        if not self._leases.renew(session_id):
            return False
        self._holders[session_id] = holder
        return True

    async def end_session(self, session_id: int) -> None:
        self._leases.end(session_id)
        self._holders.pop(session_id, None)
        session = self.session(session_id)
        if session is not None:
            await session.close()

    def session(self, session_id: int) -> SqliteSession | None:
        return next((found for found in self.store.sessions if found.session_id == session_id), None)

    def _expired(self, session_id: int) -> None:
        logger.warning("Session %d expired without a renewal; removing its keys", session_id)
        holder = self._holders.get(session_id)
        if holder is not None:
            holder.send({"ended": session_id})
        self.tasks.spawn(self.end_session(session_id), "end of a session")

    def gone(self, holder: _Connection) -> None:
        """A client is gone: its process ended, or it closed its store."""
        for session_id in [held for held, by in self._holders.items() if by is holder]:
            self.tasks.spawn(self.end_session(session_id), "end of a session")

    # --- the end

    async def close(self) -> None:
        """Stop serving: clients are disconnected, and keep their sessions for a successor."""
        if self._server is not None:
            self._server.close()
            try:
                os.unlink(self.socket_path)
            except FileNotFoundError:
                pass
        self._leases.close()
        self._holders.clear()
        for connection in list(self._connections):
            connection.abort()
        await self.tasks.cancel()
        await self.store.close()


class _Connection:
    """One client."""

    def __init__(self, server: StoreServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._requests = Tasks(_report)
        self._watches: dict[int, asyncio.Task[Any]] = {}
        self.is_closed = False

    def send(self, header: Header, values: Sequence[bytes | None] = ()) -> None:
        if not self.is_closed:
            self._writer.write(frames.encode(header, values))

    def abort(self) -> None:
        self._writer.transport.abort()

    async def serve(self) -> None:
        """Answer requests until the client is gone."""
        self.send({"protocol": frames.PROTOCOL_VERSION, "software": __version__})
        try:
            while (frame := await frames.read(self._reader)) is not None:
                self._take(*frame)
        except (OSError, asyncio.CancelledError):
            pass
        except (WireError, LookupError, TypeError, ValueError) as error:
            logger.error("Closed a client of the metadata store, which sent an invalid request: %s", error)
        finally:
            self.is_closed = True
            self.abort()
            self._server.gone(self)
            self._requests.abandon()

    def _take(self, header: Header, blob: memoryview) -> None:
        do = header["do"]
        if do == "renew":  # must not wait behind requests that use the disk
            self.send({"id": header["id"], "held": self._server.renew_session(self, header["session"])})
        elif do == "watch":
            number = header["watch"]
            self._watches[number] = self._requests.spawn(self._watch(number, header["directory"]), "watch")
        elif do == "unwatch":
            task = self._watches.pop(header["watch"], None)
            if task is not None:
                task.cancel()
        elif do in _REQUESTS:
            self._requests.spawn(self._answer(header, blob), do)
        else:
            raise WireError(f"unknown request {do!r}")

    async def _answer(self, header: Header, blob: memoryview) -> None:
        values: Sequence[bytes | None] = ()
        try:
            answer, values = await getattr(self, f"_{header['do']}")(header, blob)
        except Unavailable as error:
            answer = {"unavailable": str(error)}
        except (WireError, LookupError, TypeError, ValueError) as error:
            logger.error("Closed a client of the metadata store, which sent an invalid request: %s", error)
            self.abort()
            return
        self.send({"id": header["id"], **answer}, values)

    async def _get(self, header: Header, _: memoryview) -> tuple[Header, Sequence[bytes | None]]:
        entry = await self._server.store.get(header["key"])
        found = [] if entry is None else [entry]
        return {"entries": frames.sizes_of(found)}, [entry.value for entry in found]

    async def _list(self, header: Header, _: memoryview) -> tuple[Header, Sequence[bytes | None]]:
        entries = await self._server.store.list(header["directory"])
        return {"entries": frames.sizes_of(entries)}, [entry.value for entry in entries]

    async def _txn(self, header: Header, blob: memoryview) -> tuple[Header, Sequence[bytes | None]]:
        checks = [Check(key, version) for key, version in header["checks"]]
        values = frames.values_from([size for _, size, _ in header["writes"]], blob)
        writes = []
        for (key, _, session_id), value in zip(header["writes"], values, strict=True):
            session = self._server.session(session_id) if session_id else None
            if session_id and session is None:
                raise Unavailable(f"write refused: session {session_id} has ended")
            writes.append(Write(key, value, session))
        versions = await self._server.store.txn(checks, writes)
        return {"versions": versions}, ()

    async def _open(self, header: Header, _: memoryview) -> tuple[Header, Sequence[bytes | None]]:
        return {"session": await self._server.open_session(self, header["ttl_ms"])}, ()

    async def _end(self, header: Header, _: memoryview) -> tuple[Header, Sequence[bytes | None]]:
        await self._server.end_session(header["session"])
        return {}, ()

    async def _watch(self, number: int, directory: str) -> None:
        async for changes in self._server.store.watch(directory):
            self.send(
                {
                    "watch": number,
                    "entries": frames.sizes_of(changes.entries),
                    "removed": list(changes.removed),
                    "complete": changes.is_complete,
                },
                [entry.value for entry in changes.entries],
            )
            try:
                # A slow client gets fewer, larger updates instead of a growing backlog.
                await self._writer.drain()
            except OSError:
                return


_REQUESTS = ("get", "list", "txn", "open", "end")


def _report(error: BaseException) -> None:
    logger.error("The server of the metadata store failed", exc_info=error)
