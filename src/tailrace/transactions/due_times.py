"""When transactions are due, in slots of a second, so that a check costs what is due and not what is open."""

from __future__ import annotations

from collections.abc import Iterator

_SLOT_MS = 1_000


class DueTimes:
    """The due time of each open transaction."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, None]] = {}
        self._slot_of: dict[str, int] = {}

    def set(self, transactional_id: str, due_ms: int) -> None:
        """Note when a transaction is due; replaces an earlier time."""
        slot = due_ms // _SLOT_MS
        if self._slot_of.get(transactional_id) == slot:
            return
        self.clear(transactional_id)
        self._slot_of[transactional_id] = slot
        self._slots.setdefault(slot, {})[transactional_id] = None

    def clear(self, transactional_id: str) -> None:
        """Forget a transaction."""
        slot = self._slot_of.pop(transactional_id, None)
        if slot is None:
            return
        others = self._slots[slot]
        del others[transactional_id]
        if not others:
            del self._slots[slot]

    def due(self, now_ms: int) -> Iterator[str]:
        """Yield the transactions that are due by now; they may be changed meanwhile."""
        for slot in sorted(slot for slot in self._slots if slot <= now_ms // _SLOT_MS):
            yield from list(self._slots.get(slot, ()))
