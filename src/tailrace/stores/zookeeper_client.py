"""An awaitable interface to kazoo, a ZooKeeper client that runs threads.

Owns one kazoo client with its threads, its connection and its ZooKeeper session. Every call has a deadline; a
connection that does not answer is replaced by one to another server. What kazoo does not report comes from the sockets
that it gets from its handler: the granted session timeout, and the reason why no server can be reached.

kazoo's threads change nothing here: they post to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from tailrace.cluster.store import Unavailable

#: A request to a kazoo client: starts it and returns kazoo's result object.
Request = Callable[[Any], Any]

#: Errors that describe ZooKeeper's state; after any other error the outcome of the request is unknown.
ANSWERS = (
    BadArgumentsError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

_READ_BYTES = 1 << 16
#: The start of a server's greeting: its length, the protocol version and the session timeout.
_GREETING = struct.Struct(">iii")
_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 1.0
#: The initial share of the session timeout for a silent server, before the next one is tried.
_PATIENCE_SHARE = 1 / 6
#: Time limit for closing a session before the connection is cut.
_GOODBYE_SECONDS = 2.0

# kazoo logs every attempt of every client; the store logs once that no server can be reached, and why.
_silent = logging.getLogger("tailrace.stores.kazoo")
_silent.setLevel(logging.CRITICAL)


class _Wire:
    """A socket for kazoo: reads ahead, so that one system call serves many small answers, and sees the greeting."""

    def __init__(self, inner: socket.socket, on_greeting: Callable[[int | None], None]) -> None:
        self._inner = inner
        #: Called with the session timeout in milliseconds, or None if the server closes the connection instead.
        self._on_greeting: Callable[[int | None], None] | None = on_greeting
        self._greeting = b""
        self._ahead = b""
        self._position = 0

    @property
    def is_greeted(self) -> bool:
        return self._on_greeting is None

    def fileno(self) -> int:
        return self._inner.fileno()

    def setblocking(self, flag: bool) -> None:
        self._inner.setblocking(flag)

    def getpeername(self) -> Any:
        return self._inner.getpeername()

    def pending(self) -> int:
        """How many bytes can be read without the network; kazoo asks because TLS may hold some back."""
        decrypted = self._inner.pending() if isinstance(self._inner, ssl.SSLSocket) else 0
        return len(self._ahead) - self._position + decrypted

    def recv(self, limit: int) -> bytes:
        if self._position == len(self._ahead):
            self._ahead = self._inner.recv(_READ_BYTES)
            self._position = 0
            self._look_for_greeting()
        chunk = self._ahead[self._position : self._position + limit]
        self._position += len(chunk)
        return chunk

    def _look_for_greeting(self) -> None:
        if self._on_greeting is None:
            return
        self._greeting += self._ahead[: _GREETING.size]
        if not self._ahead:
            self._on_greeting(None)
        elif len(self._greeting) < _GREETING.size:
            return
        else:
            _, _, timeout_ms = _GREETING.unpack_from(self._greeting)
            self._on_greeting(timeout_ms)
        self._on_greeting = None

    def send(self, data: bytes) -> int:
        return self._inner.send(data)

    def cut(self) -> None:
        """Shut down both directions, from any thread, even during a read or write."""
        try:
            # Not the TLS socket's own shutdown, which would remove the state that the reading thread uses.
            socket.socket.shutdown(self._inner, socket.SHUT_RDWR)
        except OSError:
            pass  # it has already ended

    def close(self) -> None:
        self._inner.close()


class _Doorbell:
    """Wakes kazoo's connection thread by counting requests; replaces a socket pair, which blocks when full."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

    def fileno(self) -> int:
        return self._descriptor

    def send(self, data: bytes) -> int:
        os.eventfd_write(self._descriptor, len(data))
        return len(data)

    def recv(self, _: int) -> bytes:
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's own threads, with sockets that report more and can be cut.

    A server that accepts a connection and stays silent must leave time for others within a session's time to live. So
    the timeout is short at first, and grows each time no server answered.
    """

    def __init__(self, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self._least_patience = timeout_seconds * _PATIENCE_SHARE
        self._most_patience = timeout_seconds
        self._patience = self._least_patience
        self._tls = tls
        self._wire: _Wire | None = None
        self._is_cut_for_good = False
        self.granted_ms = 0
        #: Why the last connection attempt failed.
        self.reason = ""

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> _Wire:
        """Connect to a server; kazoo's own code leaks sockets if TLS fails."""
        try:
            if self._is_cut_for_good:
                raise ConnectionAbortedError
            inner = socket.create_connection(address, min(timeout, self._patience))
            try:
                inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    inner = self._tls.wrap_socket(inner, server_hostname=hostname)
            except OSError:
                inner.close()
                raise
        except OSError as error:
            self.reason = error.strerror or str(error)
            if isinstance(error, TimeoutError):
                self._was_silent()
            raise
        self._wire = _Wire(inner, self._greeted)
        return self._wire

    def _greeted(self, timeout_ms: int | None) -> None:
        if timeout_ms is None:
            self.reason = "the server closed the connection: it may have no leader or require TLS"
        elif timeout_ms > 0:  # 0: the session has expired, and a new one follows
            self.granted_ms = timeout_ms
            self.reason = ""
            self._patience = self._least_patience

    def _was_silent(self) -> None:
        self.reason = "the server does not answer"
        self._patience = min(2 * self._patience, self._most_patience)

    def create_socket_pair(self) -> tuple[_Doorbell, _Doorbell]:
        bell = _Doorbell()
        return bell, bell

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Like the module's own, but data read ahead counts as ready, and a greeting has a shorter timeout."""
        wires = [reader for reader in readers if isinstance(reader, _Wire)]
        ahead = [wire for wire in wires if wire.pending()]
        is_greeting = any(not wire.is_greeted for wire in wires)
        if is_greeting and timeout is not None:
            timeout = min(timeout, self._patience)
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        milliseconds = None if timeout is None else max(timeout, 0) * 1000
        ready = {descriptor for descriptor, _ in poll.poll(0 if ahead else milliseconds)}
        if is_greeting and not ready and not ahead:
            self._was_silent()
        return (
            [reader for reader in readers if reader.fileno() in ready or reader in ahead],
            [writer for writer in writers if writer.fileno() in ready],
            [],
        )

    def cut(self) -> None:
        """Cut the connection; kazoo continues with the next server."""
        if self._wire is not None:
            self._wire.cut()

    def cut_for_good(self) -> None:
        """Cut the connection and prevent new ones."""
        self._is_cut_for_good = True
        self.cut()


class _Answers:
    """Collects the answers to several requests in kazoo's thread, and passes them to the loop at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, results: Sequence[Any]) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._answers: list[Any] = [None] * len(results)
        self._missing = dict.fromkeys(range(len(results)))
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        for index, result in enumerate(results):
            result.rawlink(partial(self._answered, index))

    def _answered(self, index: int, result: Any) -> None:
        with self._lock:
            if index not in self._missing:
                return
            del self._missing[index]
            self._answers[index] = result.value if result.exception is None else result.exception
            if self._missing:
                return
        post(self._loop, self._finish)

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(self._answers)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
    """Call a function in the loop from one of kazoo's threads, unless the loop has ended."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        pass


class Connection:
    """One kazoo client, and the ZooKeeper session that it keeps alive while a server is reachable.

    With `is_one_session` the connection must not be used after its session has expired, because kazoo then silently
    starts another one.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout_ms: int,
        options: Mapping[str, Any],
        tls: ssl.SSLContext | None,
        *,
        is_one_session: bool = False,
    ) -> None:
        self.name = ",".join(endpoints)
        self._timeout_ms = timeout_ms
        self._options = options
        self._tls = tls
        self._is_one_session = is_one_session
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._stopped = asyncio.Event()
        self._is_stopping = False
        self._is_expired = False
        #: Called when a server becomes reachable (True) or unreachable (False).
        self.on_change: Callable[[bool], None] = lambda _: None
        self._open()

    def _open(self) -> None:
        self._handler = _Handler(self._timeout_ms / 1000, self._tls)
        self._client = KazooClient(
            hosts=self.name,
            timeout=self._timeout_ms / 1000,
            handler=self._handler,
            connection_retry=KazooRetry(max_tries=-1, delay=_RETRY_SECONDS, max_delay=_MAX_RETRY_SECONDS),
            logger=_silent,
            **self._options,
        )
        self._client.add_listener(partial(self._on_kazoo_state, self._client))
        self._client.start_async()

    def _on_kazoo_state(self, client: Any, state: str) -> None:
        """Called in kazoo's connection thread."""
        post(self._loop, self._state_changed, client, state)

    def _state_changed(self, client: Any, state: str) -> None:
        if client is not self._client or self._is_stopping:
            return
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._is_expired = self._is_expired or state == KazooState.LOST
        self.on_change(state == KazooState.CONNECTED)

    @property
    def is_expired(self) -> bool:
        """Whether ZooKeeper has reported that a session of this client has expired."""
        return self._is_expired

    @property
    def granted_ms(self) -> int:
        """The granted session timeout."""
        return self._handler.granted_ms

    async def begin_session(self, seconds: float) -> int:
        """Wait for a server and return its number for our session."""
        await self._until_connected(seconds)
        identity = self._client.client_id
        if identity is None:
            raise Unavailable(f"the connection to ZooKeeper at {self.name} was lost at once")
        session_id: int = identity[0]
        return session_id

    def transaction(self) -> Any:
        """A kazoo transaction, to be filled and run with its `commit_async`."""
        return self._client.transaction()

    async def run(self, requests: Sequence[Request], seconds: float) -> list[Any]:
        """Send requests in sequence; each answer may be one of `ANSWERS`.

        They are answered in order, all by the same server. Raises Unavailable if one of them is not answered.
        """
        if seconds <= 0:
            raise Unavailable(f"no time left for a request to ZooKeeper at {self.name}")
        deadline = self._loop.time() + seconds
        await self._until_connected(seconds)
        answers = _Answers(self._loop, [request(self._client) for request in requests])
        try:
            async with asyncio.timeout_at(deadline):
                results = await answers.future
        except TimeoutError:
            self._handler.cut()
            raise Unavailable(f"ZooKeeper at {self.name} did not answer within {seconds:.1f} s") from None
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ANSWERS):
                raise Unavailable(f"ZooKeeper at {self.name}: {self._describe(result)}") from result
        return results

    def _describe(self, error: Exception) -> str:
        if isinstance(error, AuthFailedError):
            return "the user or the password was refused"
        if isinstance(error, SessionExpiredError):
            return "the session has ended"
        return str(error) or f"the request was not answered ({type(error).__name__})"

    async def _until_connected(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._connected.wait()
        except TimeoutError:
            raise self._unreached(seconds) from None
        if self._is_stopping:
            raise Unavailable(f"the connection to ZooKeeper at {self.name} is closed")

    def _unreached(self, seconds: float) -> Unavailable:
        state = self._client.client_state
        reason = "the user or the password was refused" if state == KeeperState.AUTH_FAILED else self._handler.reason
        if state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED) and not self._is_one_session:
            # kazoo's thread has ended, on the server's order or after a failure: only a new client can retry.
            self._end(lambda: None)
            self._open()
        because = f": {reason}" if reason else ""
        return Unavailable(f"ZooKeeper at {self.name} was not reachable within {seconds:.1f} s{because}")

    def begin_stop(self, *, goodbye: bool = True) -> None:
        """End all threads, and with `goodbye` the session if a server is reachable; may be called repeatedly."""
        if not self._is_stopping:
            self._is_stopping = True
            self._connected.set()  # wakes callers that wait for a connection
            if not goodbye:
                self._handler.cut_for_good()
            self._end(self._stopped.set)

    async def stop(self, *, goodbye: bool = True) -> None:
        """The same, and wait until it is done."""
        self.begin_stop(goodbye=goodbye)
        try:
            async with asyncio.timeout(2 * _GOODBYE_SECONDS):
                await self._stopped.wait()
        except TimeoutError:
            pass  # a connection attempt that no server answers; it ends by itself

    def _end(self, then: Callable[[], None]) -> None:
        # In a daemon thread: a silent server must not keep the process from ending.
        threading.Thread(
            target=_say_goodbye,
            args=(self._client, self._handler, partial(post, self._loop, then)),
            name="zookeeper-goodbye",
            daemon=True,
        ).start()


def _say_goodbye(client: Any, handler: _Handler, then: Callable[[], None]) -> None:
    """End a client's session and wait for its threads."""
    impatience = threading.Timer(_GOODBYE_SECONDS, handler.cut_for_good)
    impatience.daemon = True
    impatience.start()
    try:
        client.stop()
        client.close()
    finally:
        impatience.cancel()
        then()
