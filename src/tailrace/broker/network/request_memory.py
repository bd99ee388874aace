"""The memory that requests and answers of all connections may take together: `queued.max.request.bytes`.

Counts what connections hold: the beginnings of requests, requests that wait for their answers, answers that wait to be
read; and what batches unpack to while they are looked into (`runtime/long_work`). Beyond the bound a connection gets
room for more of its request only in its turn, the last that came first: those that have waited for long are mostly
those that make others wait. So that no crowd of half-sent requests stands in its own way, some go beyond the bound
until their request is whole: small ones up to a sum, and one of any size. It must not know sockets or requests.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

NO_BOUND = -1
#: What every connection may hold whatever the others do, so that small requests never wait for large ones.
FREE_BYTES = 16 * 1024
_SMALL_NEED_BYTES = 4 << 20
_SMALL_NEEDS_BYTES = 16 << 20


class Holder(Protocol):
    """A connection that waits for memory."""

    def memory_granted(self) -> None:
        """Go on: there is room."""
        ...


class _Wish(NamedTuple):
    #: What it asks for now, and what it will need until its request is whole.
    step: int
    need: int


class RequestMemory:
    """One bound for all connections of a broker."""

    __slots__ = ("_is_waking", "_limit", "_privileged", "_waiting", "held_bytes", "is_short")

    def __init__(self, limit: int = NO_BOUND) -> None:
        self._limit = limit
        self.held_bytes = 0
        #: Whether all of it is taken.
        self.is_short = False
        self._waiting: dict[Holder, _Wish] = {}
        self._privileged: dict[Holder, int] = {}
        self._is_waking = False

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def hold(self, size: int) -> None:
        """Count bytes that a connection holds from now on, or with a negative size no more."""
        self.held_bytes += size
        self.is_short = 0 <= self._limit <= self.held_bytes
        if size < 0 and self._waiting:
            self._wake_soon()

    def has_room(self, size: int) -> bool:
        """Whether there is room for so much more."""
        return self._limit < 0 or self.held_bytes + size <= self._limit

    def grants(self, holder: Holder, size: int) -> bool:
        """Whether a connection may hold so much more now."""
        return self.has_room(size) or holder in self._privileged

    def wait(self, holder: Holder, step: int, need: int) -> None:
        """Have a connection told when it may hold `step` bytes more, of the `need` that its request still lacks."""
        self._waiting[holder] = _Wish(step, need)
        self._wake_soon()

    def leave(self, holder: Holder) -> None:
        """A connection needs no more memory: its request is whole, or it is gone."""
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
