"""A client of the store that a local cluster's supervisor serves over a Unix socket (`stores/server.py`).

Owns one connection and reconnects for as long as the store is open. After a reconnection, watches start with a full
read, and sessions continue if their deadline has not passed. Reads are repeated on the new connection, within their
time limit. A transaction whose answer was lost has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Sequence

from tailrace.cluster.store import Check, Entry, Session, Unavailable, Unreadable, Write
from tailrace.errors import WireError
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks
from tailrace.stores import frames
from tailrace.stores.frames import Header
from tailrace.stores.sessions import RENEWALS_PER_TTL, HeldSession
from tailrace.stores.transactions import refuse_impossible
from tailrace.stores.watching import DirectoryWatch

logger = logging.getLogger("tailrace.stores")

REQUEST_SECONDS = 5.0
_FIRST_RETRY_SECONDS = 0.02
_LAST_RETRY_SECONDS = 0.5
#: The exceptions that a malformed answer can raise.
_NO_ANSWER = (WireError, LookupError, TypeError, ValueError, AttributeError)


class _Lost(Exception):
    """The connection ended before the answer arrived."""


class ServedSession(HeldSession):
    """A session that the server holds for this process, renewed in the background."""

    def __init__(self, store: ServedStore, clock: Clock, session_id: int, ttl_ms: int, sent: float) -> None:
        super().__init__(clock, sent + ttl_ms / 1000)
        self._store = store
        self.session_id = session_id
        self.ttl = ttl_ms / 1000
        #: Set when the session should be renewed at once.
        self.is_due = asyncio.Event()

    async def close(self) -> None:
        await self._store.close_session(self)


class ServedStore:
    """The store behind a socket."""

    def __init__(self, path: str, clock: Clock, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self.path = path
        self._clock = clock
        self._request_seconds = request_seconds
        self._tasks = Tasks(_report)
        self._is_started = False
        self._is_closing = False
        self._is_closed = False
        self._connection: _Connection | None = None
        self._connected = asyncio.Event()
        self._why_not = "not connected yet"
        self._numbers = itertools.count(1)
        self._watches: dict[int, weakref.ref[DirectoryWatch]] = {}
        self._sessions: dict[int, ServedSession] = {}

    # --- the port

    async def get(self, key: str) -> Entry | None:
        return next(iter(await self._entries({"do": "get", "key": key})), None)

    async def list(self, directory: str) -> Sequence[Entry]:
        return await self._entries({"do": "list", "directory": directory})

    async def _entries(self, header: Header) -> Sequence[Entry]:
        answer, blob = await self._ask(header, is_repeatable=True)
        try:
            return frames.entries_from(answer["entries"], blob)
        except _NO_ANSWER as error:
            raise self._unreadable(error) from error

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        refuse_impossible(checks, writes)
        header = {
            "do": "txn",
            "checks": [(check.key, check.version) for check in checks],
            "writes": [
                (write.key, -1 if write.value is None else len(write.value), _id_of(write.session)) for write in writes
            ],
        }
        answer, _ = await self._ask(header, [write.value for write in writes], is_repeatable=False)
        try:
            versions: Sequence[int] | None = answer["versions"]
        except _NO_ANSWER as error:
            raise self._unreadable(error) from error
        return versions

    def watch(self, directory: str) -> DirectoryWatch:
        watch = DirectoryWatch(directory)
        if self._is_closing:
            watch.end()
            return watch
        number = next(self._numbers)
        self._watches[number] = weakref.ref(watch)
        if self._connection is not None:
            self._connection.send({"do": "watch", "watch": number, "directory": watch.directory})
        self._start()
        return watch

    async def open_session(self, ttl_ms: int) -> ServedSession:
        sent = self._clock.monotonic()
        # A repeated request may open two sessions: the other one ends with its connection, or expires.
        answer, _ = await self._ask({"do": "open", "ttl_ms": ttl_ms}, is_repeatable=True)
        try:
            session = ServedSession(self, self._clock, answer["session"], ttl_ms, sent)
        except _NO_ANSWER as error:
            raise self._unreadable(error) from error
        self._sessions[session.session_id] = session
        self._tasks.spawn(self._keep(session), "renewal of a session")
        return session

    async def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        for session in list(self._sessions.values()):
            await self.close_session(session)
        self._is_closed = True
        self._connected.set()  # wakes callers that wait for a connection, which then fail
        for _, watch in self._living_watches():
            watch.end()
        await self._tasks.cancel()

    # --- sessions

    async def close_session(self, session: ServedSession) -> None:
        """End a session; if the server cannot be told, it expires."""
        if self._sessions.pop(session.session_id, None) is None:
            return
        session.lose()
        session.is_due.set()
        if self._connection is None:
            return
        try:
            await self._ask({"do": "end", "session": session.session_id}, is_repeatable=True)
        except Unavailable as error:
            logger.warning("%s; leaving session %d to expire", error, session.session_id)

    async def _keep(self, session: ServedSession) -> None:
        while not session.is_lost:
            try:
                async with asyncio.timeout(session.ttl / RENEWALS_PER_TTL):
                    await session.is_due.wait()
            except TimeoutError:
                pass
            session.is_due.clear()
            if not session.is_lost:
                await self._renew(session)
        if self._sessions.pop(session.session_id, None) is not None and self._connection is not None:
            # Expired by the local clock: the server need not wait any longer.
            self._connection.send({"do": "end", "id": next(self._numbers), "session": session.session_id})

    async def _renew(self, session: ServedSession) -> None:
        sent = self._clock.monotonic()
        try:
            async with asyncio.timeout(session.deadline - sent):
                answer, _ = await self._ask({"do": "renew", "session": session.session_id}, is_repeatable=True)
        except (TimeoutError, Unavailable):
            return
        if answer.get("held"):
            session.extend(sent + session.ttl)
        else:
            session.lose()

    # --- requests

    async def _ask(
        self, header: Header, values: Sequence[bytes | None] = (), *, is_repeatable: bool
    ) -> tuple[Header, memoryview]:
        try:
            async with asyncio.timeout(self._request_seconds):
                while True:
                    connection = await self._connection_or_wait()
                    try:
                        answer, blob = await connection.ask(next(self._numbers), header, values)
                        break
                    except _Lost as lost:
                        if not is_repeatable:
                            raise Unavailable(f"{self._name} disconnected during a request: {lost}") from None
        except TimeoutError:
            reason = self._why_not if self._connection is None else "no answer"
            raise Unavailable(
                f"cannot reach {self._name} ({reason}): check that the cluster that serves it is running"
            ) from None
        if "unavailable" in answer:
            raise Unavailable(answer["unavailable"])
        return answer, blob

    def _unreadable(self, error: Exception) -> Unreadable:
        return Unreadable(f"{self._name} gave a malformed answer: {error!r}")

    async def _connection_or_wait(self) -> _Connection:
        while not self._is_closed:
            if self._connection is not None:
                return self._connection
            self._start()
            await self._connected.wait()
        raise Unavailable(f"{self._name} is closed")

    @property
    def _name(self) -> str:
        return f"the metadata store at {self.path}"

    # --- the connection

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._tasks.spawn(self._stay_connected(), "connection to the metadata store")

    async def _stay_connected(self) -> None:
        retry_seconds = _FIRST_RETRY_SECONDS
        is_gone = False
        while True:
            try:
                connection = await _Connection.open(self)
                try:
                    if is_gone:
                        logger.info("Reconnected to %s", self._name)
                    is_gone, retry_seconds = False, _FIRST_RETRY_SECONDS
                    self._go_on(connection)
                    await connection.receive()
                finally:
                    self._connection = None
                    self._connected.clear()
                    connection.close()
            except (OSError, _Lost, *_NO_ANSWER) as error:
                self._why_not = getattr(error, "strerror", None) or str(error)
                if not is_gone:
                    logger.warning("Cannot reach %s, retrying: %s", self._name, self._why_not)
                is_gone = True
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(retry_seconds * 2, _LAST_RETRY_SECONDS)

    def _go_on(self, connection: _Connection) -> None:
        """Resume sessions and watches on a new connection."""
        self._connection = connection
        self._connected.set()
        for session in self._sessions.values():
            session.is_due.set()
        for number, watch in self._living_watches():
            connection.send({"do": "watch", "watch": number, "directory": watch.directory})

    # --- what the server tells

    def told(self, header: Header, blob: memoryview) -> None:
        """Handle a message from the server that is not an answer."""
        if "ended" in header:
            session = self._sessions.get(header["ended"])
            if session is not None:
                session.lose()
                session.is_due.set()
            return
        number = header["watch"]
        reference = self._watches.get(number)
        watch = None if reference is None else reference()
        if watch is None:
            # Its reader has dropped it.
            self._watches.pop(number, None)
            if self._connection is not None:
                self._connection.send({"do": "unwatch", "watch": number})
            return
        entries = frames.entries_from(header["entries"], blob)
        if header["complete"]:
            watch.begin(entries)
        else:
            watch.change({**dict.fromkeys(header["removed"]), **{entry.key: entry for entry in entries}})

    def _living_watches(self) -> Sequence[tuple[int, DirectoryWatch]]:
        living = [(number, reference()) for number, reference in self._watches.items()]
        self._watches = {number: self._watches[number] for number, watch in living if watch is not None}
        return [(number, watch) for number, watch in living if watch is not None]


class _Connection:
    """One connection, from the server's greeting to its end."""

    def __init__(self, store: ServedStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[tuple[Header, memoryview]]] = {}

    @classmethod
    async def open(cls, store: ServedStore) -> _Connection:
        """Connect and check the server's greeting."""
        connecting = frames.new_socket()
        try:
            with frames.SocketPath(store.path) as path:
                await asyncio.get_running_loop().sock_connect(connecting, path)
            connection = cls(store, *await asyncio.open_unix_connection(sock=connecting))
        except BaseException:
            connecting.close()
            raise
        try:
            greeting = await frames.read(connection._reader)
            if greeting is None:
                raise _Lost("the server closed the connection at once")
            protocol = greeting[0].get("protocol")
            if protocol != frames.PROTOCOL_VERSION:
                raise WireError(
                    f"the server has protocol version {protocol}, this process has {frames.PROTOCOL_VERSION}; use the "
                    f"same version of tailrace for both (the server's is {greeting[0].get('software')})"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def send(self, header: Header, values: Sequence[bytes | None] = ()) -> None:
        self._writer.write(frames.encode(header, values))

    async def ask(self, number: int, header: Header, values: Sequence[bytes | None]) -> tuple[Header, memoryview]:
        """Send a request and wait for its answer; `_Lost` if the connection ends first."""
        future: asyncio.Future[tuple[Header, memoryview]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.send({"id": number, **header}, values)
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    async def receive(self) -> None:
        """Receive messages until the connection ends, which raises `_Lost`."""
        while (frame := await frames.read(self._reader)) is not None:
            header, blob = frame
            if "id" not in header:
                self._store.told(header, blob)
                continue
            future = self._waiting.get(header["id"])
            if future is not None and not future.done():
                future.set_result(frame)
        raise _Lost("the server closed the connection")

    def close(self) -> None:
        self._writer.transport.abort()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_Lost("the connection ended"))


def _id_of(session: Session | None) -> int:
    if session is None:
        return 0
    if not isinstance(session, ServedSession):
        raise TypeError(f"{session!r} is not a session of this store")
    if session.is_lost:
        raise Unavailable(f"write refused: session {session.session_id} has ended")
    return session.session_id


def _report(error: BaseException) -> None:
    logger.error("The client of the metadata store failed", exc_info=error)
