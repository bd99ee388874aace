"""A store in an etcd cluster, shared by all brokers of a cluster.

The version of a key is the revision of its last change, which etcd never reuses. Reads are linearizable. A session is a
lease. A watch resumes etcd's own watch after the last revision it saw; if etcd has compacted that history, it starts
again with a full read.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from tailrace.cluster.store import ABSENT, Changes, Check, Entry, Session, Unavailable, Unreadable, Write
from tailrace.runtime.clock import Clock
from tailrace.stores.addresses import ServerAddress, parse_server_address
from tailrace.stores.etcd_client import RANGE, TXN, AnswerTooLarge, Compacted, EtcdClient
from tailrace.stores.etcd_messages import (
    Delete,
    KeyValue,
    Put,
    RangePage,
    WatchMessage,
    range_request,
    read_range_response,
    read_txn_response,
    txn_request,
    understood,
)
from tailrace.stores.etcd_session import EtcdSession, open_etcd_session
from tailrace.stores.transactions import refuse_impossible
from tailrace.stores.watching import DirectoryWatch, Watches

logger = logging.getLogger("tailrace.stores")

DEFAULT_PORT = 2379
#: How many keys one request reads; fewer if their values are large.
_PAGE_KEYS = 1_000
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class EtcdStore:
    """A store of keys below a prefix."""

    def __init__(self, address: ServerAddress, clock: Clock) -> None:
        self._prefix = address.prefix
        self._clock = clock
        self._client = EtcdClient(address, clock)
        self._sessions: dict[EtcdSession, None] = {}
        self._watches = Watches()
        self._feeds: dict[asyncio.Task[None], None] = {}

    async def get(self, key: str) -> Entry | None:
        page = await self._read(range_request(self._stored(key)))
        return self._entry(page.entries[0]) if page.entries else None

    async def list(self, directory: str) -> Sequence[Entry]:
        entries, _ = await self._snapshot(directory)
        return entries

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        refuse_impossible(checks, writes)
        changes = [
            Delete(self._stored(write.key))
            if write.value is None
            else Put(self._stored(write.key), write.value, _lease_id(write.session))
            for write in writes
        ]
        compares = [(self._stored(check.key), check.version) for check in checks]
        result = understood(
            read_txn_response, await self._client.call(TXN, txn_request(compares, changes), may_repeat=False)
        )
        if not result.succeeded:
            return None
        return [ABSENT if write.value is None else result.revision for write in writes]

    def watch(self, directory: str) -> AsyncIterator[Changes]:
        watch = self._watches.add(directory)
        if self._client.is_closed:
            watch.end()
        else:
            feed = asyncio.ensure_future(self._feed(weakref.ref(watch), watch.directory))
            self._feeds[feed] = None
            feed.add_done_callback(lambda _: self._feeds.pop(feed, None))
        return watch

    async def open_session(self, ttl_ms: int) -> Session:
        session = await open_etcd_session(self._client, self._clock, ttl_ms)
        for lost in [held for held in self._sessions if held.is_lost]:
            del self._sessions[lost]
        self._sessions[session] = None
        return session

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions if not session.is_lost))
        await self.abandon()

    async def abandon(self) -> None:
        """Drop everything without closing sessions, which expire after their time to live."""
        for session in list(self._sessions):
            await session.abandon()
        self._watches.end()
        feeds = list(self._feeds)
        for feed in feeds:
            feed.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)
        await self._client.close()

    # --- reading

    def _stored(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _entry(self, entry: KeyValue) -> Entry:
        return Entry(entry.key.decode(errors="replace")[len(self._prefix) :], entry.value, entry.mod_revision)

    def _range(self, directory: str) -> tuple[bytes, bytes]:
        # '0' is the character after '/': every key below the directory sorts between the two.
        return self._stored(directory + "/"), self._stored(directory + "0")

    async def _read(self, request: bytes) -> RangePage:
        return understood(read_range_response, await self._client.call(RANGE, request, may_repeat=True))

    async def _snapshot(self, directory: str) -> tuple[Sequence[Entry], int]:
        """The entries directly in a directory as of one revision, and that revision."""
        while True:
            try:
                return await self._pages(directory.rstrip("/"))
            except Compacted:
                continue  # compacted while the pages were read; the next attempt uses a newer revision

    async def _pages(self, directory: str) -> tuple[Sequence[Entry], int]:
        start, end = self._range(directory)
        entries: list[Entry] = []
        limit, revision = _PAGE_KEYS, 0
        while True:
            try:
                page = await self._read(range_request(start, end, limit, revision))
            except AnswerTooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 10, 1)
                continue
            revision = revision or page.revision
            entries += self._directly_in(directory, page.entries)
            if not page.has_more:
                return entries, revision
            start = page.entries[-1].key + b"\0"

    def _directly_in(self, directory: str, found: Sequence[KeyValue]) -> Sequence[Entry]:
        name_at = len(directory) + 1
        entries = map(self._entry, found)
        return [entry for entry in entries if "/" not in entry.key[name_at:]]

    # --- watching

    async def _feed(self, reference: weakref.ref[DirectoryWatch], directory: str) -> None:
        """Feed a watch until its reader drops it."""
        revision: int | None = None
        pause = _FIRST_PAUSE_SECONDS
        while reference() is not None:
            try:
                if revision is None:
                    entries, revision = await self._snapshot(directory)
                    if (watch := reference()) is not None:
                        watch.begin(entries)
                    del watch  # only the reader may keep it alive
                async with aclosing(self._client.watch(*self._range(directory), revision + 1)) as messages:
                    unfinished: list[WatchMessage] = []
                    async for message in messages:
                        pause = _FIRST_PAUSE_SECONDS
                        if message.is_canceled:
                            revision = self._after_cancel(message, revision)
                            break
                        unfinished.append(message)
                        if message.is_fragment:
                            continue
                        revision = self._tell(reference, directory, unfinished, revision)
                        unfinished.clear()
                        if reference() is None:
                            return
            except Compacted:
                revision = None
            except (AnswerTooLarge, Unreadable) as error:
                logger.error("Cannot watch %s in etcd, retrying: %s", directory or "/", error)
            except Unavailable:
                pass  # the client has logged it; the watch resumes where it was
            except Exception:  # a watch that ended would leave its reader with stale data for ever
                logger.exception("Cannot watch %s in etcd, retrying", directory or "/")
            if self._client.is_closed:
                return
            await self._client.pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _after_cancel(self, message: WatchMessage, revision: int) -> int | None:
        """The revision from which to resume after etcd canceled a watch; None to start again."""
        if message.compact_revision:
            return None
        # etcd also reports "permission denied" for an expired token.
        self._client.distrust_token()
        logger.warning("etcd canceled a watch, restarting it: %s", message.reason or "no reason given")
        return revision

    def _tell(
        self,
        reference: weakref.ref[DirectoryWatch],
        directory: str,
        messages: Sequence[WatchMessage],
        revision: int,
    ) -> int:
        """Pass events on to a watch; returns the latest revision."""
        name_at = len(directory) + 1
        changed: dict[str, Entry | None] = {}
        for message in messages:
            for event in message.events:
                revision = max(revision, event.entry.mod_revision)
                entry = self._entry(event.entry)
                if "/" not in entry.key[name_at:]:
                    changed.pop(entry.key, None)
                    changed[entry.key] = None if event.is_delete else entry
        if (watch := reference()) is not None:
            watch.change(changed)
        return revision


def _lease_id(session: Session | None) -> int:
    if session is None:
        return 0
    if not isinstance(session, EtcdSession):
        raise TypeError(f"{session!r} is not a session of this store")
    if session.is_lost:
        raise Unavailable("the session of this write has ended")
    return session.lease_id


def open_etcd_store(url: str, clock: Clock) -> EtcdStore:
    """A store at an address like `etcd://host1:2379,host2:2379/prefix`; see `stores/addresses`."""
    return EtcdStore(parse_server_address(url, "etcd", DEFAULT_PORT), clock)
