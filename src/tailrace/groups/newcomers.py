"""New members of classic groups that have not sent another request yet, of all groups of a broker.

A client can join as often as it likes and never return, and each member stays at least until its session expires. So
the memory of such members is bounded: beyond the limit, the one that has been silent longest is removed. If its client
is still alive, it gets UNKNOWN_MEMBER_ID and joins again.
"""

from __future__ import annotations

from collections.abc import Callable

#: The memory that all of them may use, and what one uses beyond the bytes that its client sent.
_MOST_BYTES = 64 << 20
_EACH_BYTES = 2_000


class Newcomers:
    """The new members that are waited for, oldest first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, who: object, sent_bytes: int, give_up: Callable[[], None]) -> None:
        """Add a new member. Beyond the memory limit, call `give_up` of the oldest, which must also remove it here."""
        cost = sent_bytes + _EACH_BYTES
        self._waiting[who] = cost, give_up
        self._bytes += cost
        while self._bytes > self._most_bytes and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            _, give_up_oldest = self._waiting[oldest]
            self.remove(oldest)
            give_up_oldest()

    def remove(self, who: object) -> None:
        """Remove a member that has returned or is gone, if it is here."""
        known = self._waiting.pop(who, None)
        if known is not None:
            self._bytes -= known[0]
