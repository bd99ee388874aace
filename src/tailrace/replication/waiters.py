"""Who waits for a partition: readers for more to read, producers for their records to be acknowledged.

Owns the waiting only: when there is more, and what may be acknowledged, the partition decides.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Protocol

from tailrace.errors import KafkaError

#: From so many on, those that nobody waits for any more are looked for.
_CLEARED_FROM = 1000


class DataWaiter(Protocol):
    """Somebody who wants to know that more can be read."""

    def more_to_read(self, size: int) -> None: ...


class OffsetWaiters:
    """Futures that end when an offset has been passed, the lowest first."""

    __slots__ = ("_clear_at", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        # Among equal offsets those that came first, for futures have no order.
        self._number = 0
        self._clear_at = _CLEARED_FROM

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, last_offset: int) -> asyncio.Future[None]:
        """A future that ends when the offset has been passed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._heap, (last_offset, self._number, future))
        if len(self._heap) >= self._clear_at:
            # Where nothing moves producers give up and come again: those who left must not pile up.
            self._heap = [waiting for waiting in self._heap if not waiting[2].done()]
            heapq.heapify(self._heap)
            self._clear_at = max(_CLEARED_FROM, 2 * len(self._heap))
        return future

    def passed(self, limit: int, refusal: Exception | None = None) -> None:
        """All offsets below a limit have been passed, which is good news unless there is a refusal."""
        heap = self._heap
        while heap and heap[0][0] < limit:
            future = heapq.heappop(heap)[2]
            if refusal is not None:
                refuse(future, refusal)
            elif not future.done():
                future.set_result(None)

    def refuse_all(self, reason: Exception) -> None:
        """Nothing more will be passed."""
        for _, _, future in sorted(self._heap, key=lambda waiting: waiting[1]):
            refuse(future, reason)
        self._heap.clear()


def refuse(future: asyncio.Future[Any], reason: BaseException) -> None:
    """Tell whoever waits why not; they may have gone, which is no reason to complain."""
    if not future.done():
        future.set_exception(reason)
        future.exception()


def refused(reason: KafkaError) -> asyncio.Future[None]:
    """A future that says at once why not."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refuse(future, reason)
    return future


def again(reason: KafkaError) -> KafkaError:
    """A refusal that may have been raised before, without the stack of that, which would grow for ever."""
    return reason.with_traceback(None)
