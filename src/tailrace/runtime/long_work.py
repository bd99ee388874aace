"""Work on clients' data that takes too long for one step of the event loop, or needs much memory.

A broker has one instance. It runs one slice of such work at a time and serves everything else in between, so a thousand
such tasks slow the broker down no more than one. Their memory counts towards the limit for requests and responses.
Tasks that do not fit wait in order of arrival. One task always proceeds, whatever the limit is, because others may wait
for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

#: How many items of a request are processed in one slice; some take several microseconds each.
ITEMS_PER_SLICE = 500


class Memory(Protocol):
    """A memory limit that is shared with others."""

    def hold(self, size: int) -> None:
        """Add to the bytes in use, or subtract with a negative size."""
        ...

    def has_room(self, size: int) -> bool: ...


class Held:
    """Memory reserved for a task."""

    def __init__(self, work: LongWork, size: int) -> None:
        self._work = work
        self.size = size

    def shrink(self, size: int) -> None:
        """Return memory that turned out to be unnecessary."""
        if size < self.size:
            self._work.give_back(self.size - size)
            self.size = size


class _Wish(NamedTuple):
    size: int
    granted: asyncio.Future[None]


class LongWork:
    """The long-running tasks of one broker."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self._turn = asyncio.Lock()
        self._held_bytes = 0
        self._waiting: deque[_Wish] = deque()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    async def slice(self, work: Callable[[], T]) -> T:
        """Run a slice of about a millisecond in turn; everything else is served after it."""
        async with self._turn:
            result = work()
            await asyncio.sleep(0)
        return result

    async def each(self, work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
        """Apply a function to many items, one slice at a time."""
        results: list[T] = []
        for first in range(0, len(items), ITEMS_PER_SLICE):
            some = items[first : first + ITEMS_PER_SLICE]
            results += await self.slice(lambda some=some: [work(item) for item in some])  # type: ignore[misc]
        return results

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[Held]:
        """Reserve memory for the duration of the block, waiting until there is room."""
        await self._take(size)
        held = Held(self, size)
        try:
            yield held
        finally:
            self.give_back(held.size)

    async def _take(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self._hold(size)
            return
        wish = _Wish(size, asyncio.get_running_loop().create_future())
        self._waiting.append(wish)
        try:
            await wish.granted
        except asyncio.CancelledError:
            if wish.granted.done() and not wish.granted.cancelled():
                self.give_back(size)
            else:
                self._waiting.remove(wish)
                self._wake()
            raise

    def _fits(self, size: int) -> bool:
        return not self._held_bytes or self._memory is None or self._memory.has_room(size)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        if self._memory is not None:
            self._memory.hold(size)

    def give_back(self, size: int) -> None:
        """Return reserved memory."""
        self._hold(-size)
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            wish = self._waiting.popleft()
            if not wish.granted.done():
                self._hold(wish.size)
                wish.granted.set_result(None)
