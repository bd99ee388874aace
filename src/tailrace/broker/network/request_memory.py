"""The memory that requests and responses of all connections may use together: `queued.max.request.bytes`.

Counts what connections hold: incomplete requests, requests without a response, unread responses, and batches that are
decompressed for checks (`runtime/long_work`). Beyond the limit, a connection must wait for more memory, and the newest
waiter is served first: those that have waited long are mostly those that make others wait. So that many half-sent
requests cannot block each other, some exceed the limit until they are complete: small ones up to a total, and one of
any size. This module must not know sockets or requests.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

NO_BOUND = -1
#: What every connection may hold regardless of the others, so that small requests never wait for large ones.
FREE_BYTES = 16 * 1024
_SMALL_NEED_BYTES = 4 << 20
_SMALL_NEEDS_BYTES = 16 << 20


class Holder(Protocol):
    """A connection that waits for memory."""

    def memory_granted(self) -> None:
        """Continue: there is memory."""
        ...


class _Wish(NamedTuple):
    #: What it asks for now, and what it needs until its request is complete.
    step: int
    need: int


class RequestMemory:
    """One limit for all connections of a broker."""

    __slots__ = ("_is_waking", "_limit", "_privileged", "_waiting", "held_bytes", "is_short")

    def __init__(self, limit: int = NO_BOUND) -> None:
        self._limit = limit
        self.held_bytes = 0
        #: Whether the limit is reached.
        self.is_short = False
        self._waiting: dict[Holder, _Wish] = {}
        self._privileged: dict[Holder, int] = {}
        self._is_waking = False

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def hold(self, size: int) -> None:
        """Count bytes that a connection now holds; a negative size releases them."""
        self.held_bytes += size
        self.is_short = 0 <= self._limit <= self.held_bytes
        if size < 0 and self._waiting:
            self._wake_soon()

    def has_room(self, size: int) -> bool:
        """True if this many more bytes are within the limit."""
        return self._limit < 0 or self.held_bytes + size <= self._limit

    def grants(self, holder: Holder, size: int) -> bool:
        """True if a connection may hold this many more bytes now."""
        return self.has_room(size) or holder in self._privileged

    def wait(self, holder: Holder, step: int, need: int) -> None:
        """Notify a connection when it may hold `step` bytes more, of the `need` that its request still lacks."""
        self._waiting[holder] = _Wish(step, need)
        self._wake_soon()

    def leave(self, holder: Holder) -> None:
        """Remove a connection that needs no more memory: its request is complete, or it is gone."""
        had_privilege = self._privileged.pop(holder, None) is not None
        was_waiting = self._waiting.pop(holder, None) is not None
        if self._waiting and (had_privilege or was_waiting):
            self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        room = self._limit - self.held_bytes
        for holder, wish in reversed(list(self._waiting.items())):
            if self._waiting.get(holder) is not wish:
                continue
            if wish.step <= room:
                room -= wish.step
            elif self._may_exceed(wish.need):
                self._privileged[holder] = wish.need
            else:
                continue
            del self._waiting[holder]
            holder.memory_granted()

    def _may_exceed(self, need: int) -> bool:
        if need > _SMALL_NEED_BYTES:
            return all(other <= _SMALL_NEED_BYTES for other in self._privileged.values())
        small = sum(other for other in self._privileged.values() if other <= _SMALL_NEED_BYTES)
        return small + need <= _SMALL_NEEDS_BYTES
