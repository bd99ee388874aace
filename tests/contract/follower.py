"""A reader that follows a directory of a store and checks everything that a watch promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from tailrace.cluster.store import Changes, Entry, Store


class Follower:
    """The state of a directory as its watch tells it; to be used as `async with`."""

    def __init__(self, store: Store, directory: str, patience_seconds: float = 120.0) -> None:
        self.entries: dict[str, Entry] = {}
        self.told: list[Changes] = []
        self.has_ended = False
        self._watch = store.watch(directory)
        self._directory = directory
        self._patience_seconds = patience_seconds
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Follower:
        self._task = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        result = (await asyncio.gather(self._task, return_exceptions=True))[0]
        if error is None and isinstance(result, Exception):
            raise result

    @property
    def values(self) -> dict[str, bytes]:
        """What is in the directory, without the versions."""
        return {key: self.entries[key].value for key in sorted(self.entries)}

    async def until(self, condition: Callable[[dict[str, bytes]], bool]) -> None:
        """Wait until the directory has the expected state."""
        assert self._task is not None
        try:
            async with asyncio.timeout(self._patience_seconds):
                while not (self.told and condition(self.values)):
                    self._news.clear()
                    if self._task.done():
                        self._task.result()
                        raise AssertionError("the watch has ended")
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{self._directory} stays {self.values}") from None

    async def _follow(self) -> None:
        try:
            async for changes in self._watch:
                self._take(changes)
                self._news.set()
            self.has_ended = True
        finally:
            self._news.set()

    def _take(self, changes: Changes) -> None:
        assert changes.is_complete or self.told, "the first changes of a watch are not all there is"
        self.told.append(changes)
        keys = [entry.key for entry in changes.entries]
        assert len(keys) == len(dict.fromkeys([*keys, *changes.removed])) - len(changes.removed)
        before = self.entries
        if changes.is_complete:
            self.entries = {}
        for entry in changes.entries:
            directory, _, _ = entry.key.rpartition("/")
            assert directory == self._directory, f"{entry.key} is not directly in {self._directory}"
            known = before.get(entry.key)
            if known is not None:
                assert entry.version >= known.version, f"{entry.key} went back from {known} to {entry}"
                assert entry.version > known.version or entry.value == known.value
            self.entries[entry.key] = entry
        for key in changes.removed:
            self.entries.pop(key, None)
