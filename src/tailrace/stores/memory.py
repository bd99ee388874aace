"""A store in memory, for simulations: it lives as long as whoever holds it, so it outlives a simulated crash."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cluster.store import ABSENT, Check, Entry, Write


class MemoryStore:
    """Keys and values in a dictionary."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def list(self, directory: str) -> tuple[Sequence[Entry], int]:
        prefix = directory.rstrip("/") + "/"
        return [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)], self._revision

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        for check in checks:
            entry = self._entries.get(check.key)
            if (entry.version if entry else ABSENT) != check.version:
                return False
        self._revision += 1
        for write in writes:
            if write.value is None:
                self._entries.pop(write.key, None)
            else:
                self._entries[write.key] = Entry(write.key, write.value, self._revision)
        return True

    async def close(self) -> None:
        """Nothing to let go of."""
