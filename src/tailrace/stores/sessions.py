"""Sessions from both ends: how long the holder can rely on one, and when the store considers a holder gone.

The holder counts from the moment it *sent* a renewal, the store from the moment it received it. With the same time to
live the holder is always the first to know. Neither relies on timers alone: a suspended process checks the clock as
soon as it runs again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from tailrace.runtime.clock import Clock

#: Renewals per time to live, so that one lost renewal does no harm.
RENEWALS_PER_TTL = 3
#: A store that wakes up late by this share of the time to live was not listening, so it does not expire the session.
_LATE_SHARE = 0.25


class HeldSession:
    """A session's deadline as its holder knows it; once it has passed, the session stays lost."""

    def __init__(self, clock: Clock | None, deadline: float) -> None:
        self._clock = clock
        self._deadline = deadline
        self._is_lost = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def deadline(self) -> float:
        return self._deadline

    @property
    def is_lost(self) -> bool:
        if not self._is_lost and self._clock is not None and self._clock.monotonic() >= self._deadline:
            self.lose()
        return self._is_lost

    def extend(self, deadline: float) -> None:
        """Extend the deadline, unless it has already passed."""
        if not self.is_lost:
            self._deadline = max(self._deadline, deadline)

    def lose(self) -> None:
        """The session has ended."""
        self._is_lost = True
        if self._clock is not None:
            self._deadline = min(self._deadline, self._clock.monotonic())
        else:
            self._deadline = -math.inf
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait_until_lost(self) -> None:
        while not self.is_lost:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            left = None if self._clock is None else self._deadline - self._clock.monotonic()
            try:
                await asyncio.wait([waiter], timeout=None if left is None or math.isinf(left) else max(left, 0.0))
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)


class _Lease:
    __slots__ = ("expires", "timer", "ttl")

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.expires = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Leases:
    """The sessions that a store grants: each ends when it is not renewed for its time to live."""

    def __init__(self, clock: Clock, on_expired: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_expired = on_expired
        self._leases: dict[int, _Lease] = {}

    def grant(self, session_id: int, ttl_ms: int) -> None:
        """Start a session's time to live."""
        lease = self._leases[session_id] = _Lease(ttl_ms / 1000)
        lease.expires = self._clock.monotonic() + lease.ttl
        self._set_timer(session_id, lease)

    def renew(self, session_id: int) -> bool:
        """Extend a session; False if it has ended."""
        lease = self._leases.get(session_id)
        if lease is None:
            return False
        lease.expires = self._clock.monotonic() + lease.ttl  # the timer checks this when it fires
        return True

    def end(self, session_id: int) -> None:
        """Drop a session without reporting it as expired."""
        lease = self._leases.pop(session_id, None)
        if lease is not None and lease.timer is not None:
            lease.timer.cancel()

    def close(self) -> None:
        """Drop all sessions."""
        for session_id in list(self._leases):
            self.end(session_id)

    def _set_timer(self, session_id: int, lease: _Lease) -> None:
        left = max(lease.expires - self._clock.monotonic(), 0.0)
        lease.timer = asyncio.get_running_loop().call_later(left, self._look, session_id, lease)

    def _look(self, session_id: int, lease: _Lease) -> None:
        late = self._clock.monotonic() - lease.expires
        if late >= lease.ttl * _LATE_SHARE:
            lease.expires = self._clock.monotonic() + lease.ttl
            late = -lease.ttl
        if late < 0:
            self._set_timer(session_id, lease)
            return
        del self._leases[session_id]
        self._on_expired(session_id)
