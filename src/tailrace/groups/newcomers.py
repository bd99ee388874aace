"""Members of classic groups that have joined and not come back yet, of all groups of a broker together.

A client can ask to join and never be heard of again, as often as it likes, and its member stays until its session is
over or longer. So what such members take is bounded: where it is too much, those go first that have not come back for
longest. A client that is still there is told UNKNOWN_MEMBER_ID when it comes back, and joins anew.
"""

from __future__ import annotations

from collections.abc import Callable

#: What all of them may take, and what one takes beside the bytes that its client sent.
_MOST_BYTES = 64 << 20
_EACH_BYTES = 2_000


class Newcomers:
    """Who has still to come back, longest first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, who: object, sent_bytes: int, give_up: Callable[[], None]) -> None:
        """Wait for somebody; others are given up if it is too much then, which has to remove them here as well."""
        cost = sent_bytes + _EACH_BYTES
        self._waiting[who] = cost, give_up
        self._bytes += cost
        while self._bytes > self._most_bytes and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            _, give_up_oldest = self._waiting[oldest]
            self.remove(oldest)
            give_up_oldest()

    def remove(self, who: object) -> None:
        """Somebody has come back or is gone, if it was waited for."""
        known = self._waiting.pop(who, None)
        if known is not None:
            self._bytes -= known[0]
