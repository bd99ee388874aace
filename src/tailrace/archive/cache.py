"""A bounded cache: what was used last stays, as long as all of it together costs no more than was agreed.

It is used from the threads of a helper process, hence the lock; what is not there is loaded outside of it, at worst
twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by key, each with its cost in bytes; the last one put stays, whatever it costs."""

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
        """The value, which counts as used; None where it is not kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, cost_bytes: int) -> None:
        """Keep a value, and let go of those that were not used for longest."""
        with self._lock:
            if (old := self._entries.pop(key, None)) is not None:
                self._bytes -= old[1]
            self._entries[key] = value, cost_bytes
            self._bytes += cost_bytes
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                _, (_, cost) = self._entries.popitem(last=False)
                self._bytes -= cost
