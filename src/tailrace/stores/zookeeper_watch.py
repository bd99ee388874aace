"""Follows one directory in ZooKeeper and feeds its changes to a watch.

ZooKeeper reports only once that a node or its list of children has changed, without the new state. So every event is
followed by a read that also requests the next event. A lost connection loses these requests: then the whole directory
is read again and compared with what the watch has received.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.states import EventType

from tailrace.cluster.store import ABSENT, Entry, Refused, Unavailable
from tailrace.stores.watching import DirectoryWatch
from tailrace.stores.zookeeper_client import Connection, Request, post
from tailrace.stores.zookeeper_nodes import decode, version_of

logger = logging.getLogger("tailrace.stores")

#: How many nodes are read at once, so that other requests are answered in between.
BATCH_NODES = 200
_PAUSE_SECONDS = 0.1
_LONG_PAUSE_SECONDS = 1.0


class DirectoryFeed:
    """The known state of one directory, and the parts that may be out of date."""

    def __init__(
        self,
        watch: DirectoryWatch,
        connection: Connection,
        path: str,
        make_directory: Callable[[str], Awaitable[None]],
        refusal: Callable[[], Refused],
        seconds: float,
    ) -> None:
        self._directory = watch.directory
        self._connection = connection
        self._path = path
        self._make_directory = make_directory
        self._refusal = refusal
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._news.set()
        # Only its reader keeps the watch alive; when the reader drops it, this feed ends.
        self._watch = weakref.ref(watch, lambda _: post(self._loop, self._news.set))
        self._is_all_old = True
        self._is_list_old = True
        self._old: dict[str, None] = {}
        #: The version of each key that the watch has received, by node name; `ABSENT` for directories.
        self._told: dict[str, int] = {}

    async def run(self) -> None:
        """Feed the watch until its reader drops it."""
        was_refused = False
        while self._watch() is not None:
            try:
                await self._news.wait()
                self._news.clear()
                await self._catch_up()
                was_refused = False
                continue
            except Refused as error:
                if not was_refused:
                    logger.warning("Cannot watch %s in ZooKeeper, retrying: %s", self._directory or "/", error)
                was_refused = True
                pause = _LONG_PAUSE_SECONDS
            except Unavailable:
                pause = _PAUSE_SECONDS  # the store has already logged it
            except Exception:  # a watch that ended would leave its reader with stale data for ever
                logger.exception("Cannot watch %s in ZooKeeper, retrying", self._directory or "/")
                pause = _LONG_PAUSE_SECONDS
            self._is_all_old = True
            self._news.set()
            await asyncio.sleep(pause)

    async def _catch_up(self) -> None:
        is_all, self._is_all_old = self._is_all_old, False
        is_list, self._is_list_old = self._is_list_old or is_all, False
        names, self._old = self._old, {}
        gone: list[str] = []
        if is_list:
            children = dict.fromkeys(await self._read_list(is_all))
            gone = [name for name in self._told if name not in children]
            current = self._told.keys() - names.keys()
            names = children if is_all else {name: None for name in children if name not in current}
        found = await self._read_nodes(list(names))
        gone += [name for name in names if name not in found]
        # A new connection may lead to a server that is behind; then everything is read again, and nothing is delivered.
        if not self._is_all_old:
            self._tell(found, gone)

    async def _read_list(self, is_all: bool) -> list[str]:
        if is_all:
            await self._make_directory(self._path)
        # A new connection may lead to another server, which must not be behind what was already delivered.
        path = self._path or "/"
        requests: list[Request] = [lambda client: client.sync_async(path)] if is_all else []
        requests.append(lambda client: client.get_children_async(path, watch=self._on_list))
        children = (await self._connection.run(requests, self._seconds))[-1]
        self._refuse_errors(path, children)
        return sorted(children)

    async def _read_nodes(self, names: Sequence[str]) -> dict[str, Entry | None]:
        """The entry of each node that still exists; None for a directory."""
        found: dict[str, Entry | None] = {}
        for start in range(0, len(names), BATCH_NODES):
            batch = names[start : start + BATCH_NODES]
            answers = await self._connection.run([self._read_node(name) for name in batch], self._seconds)
            for name, answer in zip(batch, answers, strict=True):
                if isinstance(answer, NoNodeError):
                    continue
                self._refuse_errors(f"{self._path}/{name}", answer)
                data, stat = answer
                found[name] = Entry(self._key(name), decode(data), version_of(stat)) if data else None
        return found

    def _refuse_errors(self, path: str, answer: Any) -> None:
        if isinstance(answer, NoAuthError):
            raise self._refusal()
        if isinstance(answer, Exception):
            raise Unavailable(f"cannot read {path} in ZooKeeper: {answer!r}")

    def _key(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _read_node(self, name: str) -> Request:
        return lambda client: client.get_async(f"{self._path}/{name}", watch=partial(self._on_node, name))

    def _tell(self, found: dict[str, Entry | None], gone: Sequence[str]) -> None:
        watch = self._watch()
        if watch is None:
            return
        removed = [name for name in gone if self._told.pop(name, ABSENT) != ABSENT]
        changed: list[Entry] = []
        for name, entry in found.items():
            version = ABSENT if entry is None else entry.version
            told = self._told.get(name, ABSENT)
            self._told[name] = version
            if entry is None and told != ABSENT:
                removed.append(name)
            elif entry is not None and version != told:
                changed.append(entry)
        if not watch.is_begun:
            watch.begin(changed)
            return
        news: dict[str, Entry | None] = {self._key(name): None for name in removed}
        # In the order in which they were written, as far as one read can show.
        news.update((entry.key, entry) for entry in sorted(changed, key=lambda entry: entry.version))
        watch.change(news)

    # --- called in one of kazoo's threads

    def _on_list(self, event: Any) -> None:
        post(self._loop, self._note, None, event.type)

    def _on_node(self, name: str, event: Any) -> None:
        post(self._loop, self._note, name, event.type)

    # --- called in the loop

    def _note(self, name: str | None, kind: str) -> None:
        if kind == EventType.NONE:  # the connection is lost, and with it all requests for events
            self._is_all_old = True
        elif name is None:
            self._is_list_old = True
        else:
            self._old[name] = None
        self._news.set()
