"""What waits for a partition: readers for more to read, producers for acknowledgements.

This module only keeps the waiters. The partition decides when there is more and what it may acknowledge.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Protocol

from tailrace.errors import KafkaError

#: From this many waiters on, abandoned ones are removed.
_CLEARED_FROM = 1000


class DataWaiter(Protocol):
    """Wants to know when more can be read."""

    def more_to_read(self, size: int) -> None: ...


class OffsetWaiters:
    """Futures that complete when an offset has been passed, lowest first."""

    __slots__ = ("_clear_at", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        # Breaks ties between equal offsets in order of arrival: futures cannot be compared.
        self._number = 0
        self._clear_at = _CLEARED_FROM

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, last_offset: int) -> asyncio.Future[None]:
        """A future that completes when the offset has been passed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._heap, (last_offset, self._number, future))
        if len(self._heap) >= self._clear_at:
            # While nothing moves, producers time out and retry: abandoned futures must not pile up.
            self._heap = [waiting for waiting in self._heap if not waiting[2].done()]
            heapq.heapify(self._heap)
            self._clear_at = max(_CLEARED_FROM, 2 * len(self._heap))
        return future

    def passed(self, limit: int, refusal: Exception | None = None) -> None:
        """Complete every waiter below a limit, or fail it with `refusal`."""
        heap = self._heap
        while heap and heap[0][0] < limit:
            future = heapq.heappop(heap)[2]
            if refusal is not None:
                refuse(future, refusal)
            elif not future.done():
                future.set_result(None)

    def refuse_all(self, reason: Exception) -> None:
        """Fail all waiters: no more offsets will be passed."""
        for _, _, future in sorted(self._heap, key=lambda waiting: waiting[1]):
            refuse(future, reason)
        self._heap.clear()


def refuse(future: asyncio.Future[Any], reason: BaseException) -> None:
    """Fail a future, and mark the exception as retrieved in case its waiter has gone."""
    if not future.done():
        future.set_exception(reason)
        future.exception()


def refused(reason: KafkaError) -> asyncio.Future[None]:
    """A future that has already failed."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refuse(future, reason)
    return future


def again(reason: KafkaError) -> KafkaError:
    """An error that may have been raised before, without its traceback, which would grow with every raise."""
    return reason.with_traceback(None)
