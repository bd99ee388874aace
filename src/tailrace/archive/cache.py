"""A bounded cache that evicts the least recently used values when their total cost exceeds a limit.

Threads of a helper process share it, hence the lock. Missing values are loaded outside the lock, at worst twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by key, each with its cost in bytes; the last one put always stays, whatever it costs."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> V | None:
        """The value, marked as used; None if it is not cached."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, cost_bytes: int) -> None:
        """Cache a value, and evict the least recently used ones."""
        with self._lock:
            if (old := self._entries.pop(key, None)) is not None:
                self._bytes -= old[1]
            self._entries[key] = value, cost_bytes
            self._bytes += cost_bytes
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                _, (_, cost) = self._entries.popitem(last=False)
                self._bytes -= cost
