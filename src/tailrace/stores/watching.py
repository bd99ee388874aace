"""Queues of changes between a store and the reader of a watch.

A watch only keeps the latest state of each key that its reader has not seen. A slow reader skips states that were
replaced in between, and costs no more memory than the directory has keys. Each step takes the reader from one state of
the directory to a later one. Every store feeds these watches, which know of no store.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tailrace.cluster.store import Changes, Entry

#: Changed keys in the order of their last change, with their entry, or None if the key was removed.
Changed: TypeAlias = Mapping[str, Entry | None]


def directory_of(key: str) -> str:
    """The directory that directly contains a key; the top directory is ''."""
    return key[: key.rindex("/")]


class DirectoryWatch:
    """An endless sequence of changes to one directory, for one reader."""

    def __init__(self, directory: str) -> None:
        self.directory = directory.rstrip("/")
        self._unseen: dict[str, Entry | None] = {}
        self._is_begun = False
        self._is_complete = False
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it has received the full directory, which comes first."""
        return self._is_begun

    def begin(self, entries: Iterable[Entry]) -> None:
        """Deliver the full directory: at the start, and again after a gap."""
        self._unseen = {entry.key: entry for entry in entries}
        self._is_begun = self._is_complete = True
        self._wake()

    def change(self, changed: Changed) -> None:
        """Deliver changed keys of this directory; ignored before `begin`."""
        if not self._is_begun or not changed:
            return
        for key, entry in changed.items():
            self._unseen.pop(key, None)
            # Until the full directory has been read, a removed key is simply missing from it.
            if entry is not None or not self._is_complete:
                self._unseen[key] = entry
        self._wake()

    def end(self) -> None:
        """End the watch: the reader's loop ends, even with unread changes."""
        self._is_ended = True
        self._wake()

    def __aiter__(self) -> DirectoryWatch:
        return self

    async def __anext__(self) -> Changes:
        while not self._is_ended and not self._unseen and not self._is_complete:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._is_ended:
            raise StopAsyncIteration
        unseen, self._unseen = self._unseen, {}
        is_complete, self._is_complete = self._is_complete, False
        entries = [entry for entry in unseen.values() if entry is not None]
        removed = [key for key, entry in unseen.items() if entry is None]
        return Changes(entries, removed, is_complete)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Watches:
    """The watches of one process; a watch ends when its reader drops it."""

    def __init__(self) -> None:
        # In order of creation, and weak, because a cancelled reader does not report its end.
        self._watches: dict[int, weakref.ref[DirectoryWatch]] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, directory: str) -> DirectoryWatch:
        """Create a watch; the caller must call `begin` on it."""
        watch = DirectoryWatch(directory)
        number = self._made = self._made + 1
        self._watches[number] = weakref.ref(watch, lambda _: self._watches.pop(number, None))
        return watch

    def publish(self, changed: Changed) -> None:
        """Deliver to every watch the changes in its directory."""
        by_directory: dict[str, dict[str, Entry | None]] = {}
        for key, entry in changed.items():
            by_directory.setdefault(directory_of(key), {})[key] = entry
        for watch in self._living():
            watch.change(by_directory.get(watch.directory, {}))

    def end(self) -> None:
        """End all watches."""
        for watch in self._living():
            watch.end()
        self._watches.clear()

    def _living(self) -> list[DirectoryWatch]:
        return [watch for reference in list(self._watches.values()) if (watch := reference()) is not None]
