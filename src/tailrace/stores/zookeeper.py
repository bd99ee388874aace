"""A store in ZooKeeper, shared by all brokers of a cluster.

Keys are nodes below a prefix, in the format of `zookeeper_nodes`; keys of a session are ephemeral nodes. A server
answers from its own state, so every read first makes it catch up (`sync`). Each session has its own connection; one
connection is for everything else.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import make_digest_acl

from tailrace.cluster.store import ABSENT, Changes, Check, Entry, Refused, Session, TooLarge, Unavailable, Write
from tailrace.runtime.clock import Clock
from tailrace.stores.addresses import ServerAddress, parse_server_address
from tailrace.stores.transactions import refuse_impossible
from tailrace.stores.watching import Watches
from tailrace.stores.zookeeper_client import Connection, Request
from tailrace.stores.zookeeper_nodes import SESSIONS_DIRECTORY, Operation, Stat, decode, plan, version_of
from tailrace.stores.zookeeper_session import ZooKeeperSession, open_zookeeper_session
from tailrace.stores.zookeeper_watch import BATCH_NODES, DirectoryFeed

logger = logging.getLogger("tailrace.stores")

DEFAULT_PORT = 2181
#: Session timeout of the shared connection: long enough to try several servers, short enough to notice a silent one.
_TIMEOUT_MS = 6_000
_PAUSE_SECONDS = 0.05
_PATROL_SECONDS = 1.0
#: ZooKeeper closes the connection on a longer message, unless jute.maxbuffer was raised.
_MAX_TRANSACTION_BYTES = 1_000_000

#: Errors which mean that a node has changed since the transaction was planned.
_CHANGED = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
#: What ZooKeeper reports for the other operations of a failed transaction.
_NOT_THE_REASON = (RolledBackError, RuntimeInconsistency)


class ZooKeeperStore:
    """A store of keys below a prefix."""

    def __init__(self, address: ServerAddress, clock: Clock) -> None:
        self._address = address
        self._prefix = address.prefix
        self._clock = clock
        self._options = _options(address)
        self._tls = _tls_context(address) if address.is_secure else None
        self._connection: Connection | None = None
        self._patrol: asyncio.Task[None] | None = None
        self._was_lost = False
        self._is_closed = False
        self._directories: dict[str, None] = {"": None}
        self._sessions: dict[ZooKeeperSession, None] = {}
        self._watches = Watches()
        self._feeds: dict[asyncio.Task[None], None] = {}

    async def get(self, key: str) -> Entry | None:
        (answer,) = await self._read(self._connected(), [_get(self._path(key))])
        return _entry(key, answer)

    async def list(self, directory: str) -> Sequence[Entry]:
        directory = directory.rstrip("/")
        path = self._path(directory) or "/"
        (names,) = await self._read(self._connected(), [lambda client: client.get_children_async(path)])
        if isinstance(names, NoNodeError):
            return []
        keys = [f"{directory}/{name}" for name in sorted(names)]
        entries: list[Entry | None] = []
        for start in range(0, len(keys), BATCH_NODES):
            batch = keys[start : start + BATCH_NODES]
            answers = await self._read(self._connected(), [_get(self._path(key)) for key in batch])
            entries += [_entry(key, answer) for key, answer in zip(batch, answers, strict=True)]
        return [entry for entry in entries if entry is not None]

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        refuse_impossible(checks, writes)
        session = self._session_of(writes)
        connection = self._connected() if session is None else session.connection
        keys = list(dict.fromkeys([check.key for check in checks] + [write.key for write in writes]))
        deadline = self._deadline()
        while True:
            answers = await self._read(connection, [_exists(self._path(key)) for key in keys], deadline)
            nodes: dict[str, Stat | None] = dict(zip(keys, answers, strict=True))
            operations = plan(checks, writes, nodes, session.session_id if session else 0)
            if operations is None:
                return None
            for operation in operations:
                if operation.kind.startswith("create"):
                    await self._make_directory(self._path(operation.key).rpartition("/")[0], deadline)
            version = await self._commit(connection, operations, session, deadline)
            if version is not None:
                return [ABSENT if write.value is None else version for write in writes]
            if _now() >= deadline:
                raise Unavailable(f"concurrent writes to the same keys in ZooKeeper never stopped: {', '.join(keys)}")

    def watch(self, directory: str) -> AsyncIterator[Changes]:
        watch = self._watches.add(directory)
        if self._is_closed:
            watch.end()
        else:
            path = self._path(watch.directory)
            feed = DirectoryFeed(
                watch, self._connected(), path, self._make_directory, self._refused, self._address.timeout_seconds
            )
            task = asyncio.ensure_future(feed.run())
            self._feeds[task] = None
            task.add_done_callback(lambda _: self._feeds.pop(task, None))
        return watch

    async def open_session(self, ttl_ms: int) -> Session:
        if self._is_closed:
            raise Unavailable("the store is closed")
        await self._make_directory(self._path(SESSIONS_DIRECTORY))
        connection = Connection(self._address.endpoints, ttl_ms, self._options, self._tls, is_one_session=True)
        try:
            session = await open_zookeeper_session(
                connection, self._clock, self._prefix, ttl_ms, self._address.timeout_seconds
            )
        except BaseException:
            connection.begin_stop()
            raise
        for lost in [held for held in self._sessions if held.is_lost]:
            del self._sessions[lost]
        self._sessions[session] = None
        return session

    async def close(self) -> None:
        await self._let_go(goodbye=True)

    async def abandon(self) -> None:
        """Drop everything without closing sessions, which expire after their time to live."""
        await self._let_go(goodbye=False)

    async def _let_go(self, goodbye: bool) -> None:
        self._is_closed = True
        self._watches.end()
        feeds = list(self._feeds)
        for feed in feeds:
            feed.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)
        await asyncio.gather(*(session.close() if goodbye else session.abandon() for session in self._sessions))
        if self._connection is not None and self._patrol is not None:
            self._patrol.cancel()
            await self._connection.stop(goodbye=goodbye)

    # --- the connection

    def _connected(self) -> Connection:
        """The shared connection, created on first use, in the loop that uses it."""
        if self._connection is None:
            if self._is_closed:
                raise Unavailable("the store is closed")
            self._connection = Connection(self._address.endpoints, _TIMEOUT_MS, self._options, self._tls)
            self._connection.on_change = self._reached
            self._patrol = asyncio.ensure_future(self._leave_silent_servers(self._connection))
        return self._connection

    async def _leave_silent_servers(self, connection: Connection) -> None:
        """Ping the server: callers that only wait for changes or for a write would notice its silence late."""
        while True:
            await asyncio.sleep(_PATROL_SECONDS)
            try:
                await connection.run([_sync(self._prefix)], self._address.timeout_seconds / 2)
            except Unavailable:
                pass  # the connection has left the silent server by now

    def _reached(self, is_reached: bool) -> None:
        assert self._connection is not None
        if is_reached and self._was_lost:
            logger.info("Reconnected to ZooKeeper at %s", self._connection.name)
        elif not is_reached and not self._was_lost:
            logger.warning("Lost the connection to ZooKeeper at %s, retrying", self._connection.name)
        self._was_lost = not is_reached

    def _deadline(self) -> float:
        """The time at which a call that starts now must end."""
        return _now() + self._address.timeout_seconds

    async def _ask(self, connection: Connection, requests: Sequence[Request], deadline: float) -> Sequence[Any]:
        """Send repeatable requests, if necessary to another server."""
        while True:
            # Half of the time, which leaves the other half for another server.
            seconds = min(self._address.timeout_seconds / 2, max(deadline - _now(), 0.0))
            try:
                return await connection.run(requests, seconds)
            except Unavailable:
                if self._is_closed or _now() + _PAUSE_SECONDS >= deadline:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _read(
        self, connection: Connection, requests: Sequence[Request], deadline: float | None = None
    ) -> Sequence[Any]:
        """Read answers that are not older than this call."""
        requests = [_sync(self._prefix), *requests]
        _, *answers = await self._ask(connection, requests, self._deadline() if deadline is None else deadline)
        for answer in answers:
            if isinstance(answer, NoAuthError):
                raise self._refused()
            if isinstance(answer, Exception) and not isinstance(answer, NoNodeError):
                raise Unavailable(f"cannot read from ZooKeeper at {connection.name}: {answer!r}")
        return answers

    def _refused(self) -> Refused:
        as_whom = f"user {self._address.user}" if self._address.user else "a client without user and password"
        return Refused(
            f"ZooKeeper at {','.join(self._address.endpoints)} does not allow {as_whom} to use {self._prefix or '/'}: "
            "use the user and password that created its nodes"
        )

    def _path(self, key: str) -> str:
        return self._prefix + key

    # --- writing

    def _session_of(self, writes: Sequence[Write]) -> ZooKeeperSession | None:
        session = next((write.session for write in writes if write.session is not None), None)
        if session is None:
            return None
        if not isinstance(session, ZooKeeperSession):
            raise TypeError(f"{session!r} is not a session of this store")
        if session.is_lost:
            raise Unavailable("the session of this write has ended")
        return session

    async def _make_directory(self, path: str, deadline: float | None = None) -> None:
        """Ensure that a node and all its parents exist."""
        if path in self._directories:
            return
        names = path.split("/")[1:]
        above = ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        # From the top, all at once: most exist, and those above the prefix may belong to others.
        *created, node = await self._ask(
            self._connected(), [*map(_create, above), _exists(path)], self._deadline() if deadline is None else deadline
        )
        if node is None or isinstance(node, Exception):
            if any(isinstance(answer, NoAuthError) for answer in created):
                raise self._refused()
            if any(isinstance(answer, NoChildrenForEphemeralsError) for answer in created):
                raise ValueError(f"ZooKeeper does not allow keys below a key of a session: {path}")
            raise Unavailable(f"{path} was created in ZooKeeper but does not exist")
        self._directories[path] = None

    async def _commit(
        self,
        connection: Connection,
        operations: Sequence[Operation],
        session: ZooKeeperSession | None,
        deadline: float,
    ) -> int | None:
        """Apply all operations or none; returns the version of the writes, or None if a node has changed."""
        size = sum(operation.size + len(self._prefix) for operation in operations)
        if size > _MAX_TRANSACTION_BYTES:
            keys = dict.fromkeys(operation.key for operation in operations if operation.data)
            raise TooLarge(
                f"{size} bytes exceed the limit of a ZooKeeper transaction ({_MAX_TRANSACTION_BYTES}): "
                f"{', '.join(keys)}"
            )
        if not operations:
            return ABSENT
        transaction = connection.transaction()
        for operation in operations:
            self._add(transaction, operation)
        (results,) = await connection.run([lambda _: transaction.commit_async()], max(deadline - _now(), 0.0))
        errors = [results] if isinstance(results, Exception) else [one for one in results if isinstance(one, Exception)]
        if not errors:
            written = [one.mzxid for one in results if hasattr(one, "mzxid")]
            return written[0] if written else ABSENT
        if session is not None and not isinstance(results, Exception) and isinstance(results[0], NoNodeError):
            session.lose()
            raise Unavailable("the session of this write has ended")
        error = next((one for one in errors if not isinstance(one, _NOT_THE_REASON)), errors[0])
        if isinstance(error, NoNodeError):
            self._directories = {"": None}  # perhaps a directory was removed
        if isinstance(error, _CHANGED):
            return None
        if isinstance(error, NoAuthError):
            raise self._refused()
        if isinstance(error, NoChildrenForEphemeralsError):
            raise ValueError("ZooKeeper does not allow keys below a key of a session")
        raise Unavailable(f"ZooKeeper at {connection.name} refused a transaction: {error!r}")

    def _add(self, transaction: Any, operation: Operation) -> None:
        path = self._path(operation.key)
        if operation.kind == "set":
            transaction.set_data(path, operation.data, operation.version)
        elif operation.kind == "delete":
            transaction.delete(path, operation.version)
        elif operation.kind == "check":
            transaction.check(path, operation.version)
        else:
            transaction.create(path, operation.data, ephemeral=operation.kind == "create ephemeral")


def _now() -> float:
    return asyncio.get_running_loop().time()


def open_zookeeper_store(url: str, clock: Clock) -> ZooKeeperStore:
    """Open a store at an address like `zookeeper://host1:2181,host2:2181/chroot`; see `stores/addresses`."""
    return ZooKeeperStore(parse_server_address(url, "zookeeper", DEFAULT_PORT), clock)


def _options(address: ServerAddress) -> dict[str, Any]:
    """kazoo's options for authentication."""
    if not address.user:
        return {}
    return {
        "auth_data": [("digest", f"{address.user}:{address.password}")],
        "default_acl": [make_digest_acl(address.user, address.password, all=True)],
    }


def _tls_context(address: ServerAddress) -> ssl.SSLContext:
    """The TLS context with trusted certificates and our own one; ValueError for unusable files."""
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
    except OSError as error:
        raise ValueError(f"cannot use the ca {address.ca}: {error}") from error
    # Python 3.13 and later refuse certificates that lack a field of RFC 5280, such as those that OpenSSL 3.0 signs by
    # default. A newer Python must not cut a broker off from its servers. gRPC accepts such certificates of etcd too.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if address.cert:
        try:
            context.load_cert_chain(address.cert, address.key)
        except OSError as error:
            raise ValueError(f"cannot use the cert {address.cert} with the key {address.key}: {error}") from error
    return context


def _entry(key: str, answer: Any) -> Entry | None:
    """The entry of a key, from ZooKeeper's answer about its node; None for a directory or a missing node."""
    if isinstance(answer, NoNodeError):
        return None
    data, stat = answer
    return Entry(key, decode(data), version_of(stat)) if data else None


def _sync(path: str) -> Request:
    return lambda client: client.sync_async(path or "/")


def _get(path: str) -> Request:
    return lambda client: client.get_async(path)


def _exists(path: str) -> Request:
    return lambda client: client.exists_async(path)


def _create(path: str) -> Request:
    return lambda client: client.create_async(path)
