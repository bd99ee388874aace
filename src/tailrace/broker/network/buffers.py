"""Large receive buffers, reused: allocating memory costs more than the copy into it.

The pool has a size limit; the allocator serves the rest. The caller that returns a buffer must hold no view of it.
"""

from __future__ import annotations

_SMALLEST_BYTES = 64 * 1024
_LARGEST_BYTES = 4 << 20
_KEPT_BYTES = 16 << 20


class BufferPool:
    """Spare buffers by size, each a power of two."""

    def __init__(self) -> None:
        self._spare: dict[int, list[bytearray]] = {}
        self._kept_bytes = 0

    def take_spare(self, size: int) -> bytearray | None:
        """Return a buffer of at least this size, with its old content; None if there is no spare one."""
        rounded = 1 << (size - 1).bit_length()
        spare = self._spare.get(rounded)
        if not spare:
            return None
        self._kept_bytes -= rounded
        return spare.pop()

    def give(self, buffer: bytearray) -> None:
        """Take back a buffer without any views."""
        size = len(buffer)
        is_worth_it = _SMALLEST_BYTES <= size <= _LARGEST_BYTES and size & (size - 1) == 0
        if is_worth_it and self._kept_bytes + size <= _KEPT_BYTES:
            self._spare.setdefault(size, []).append(buffer)
            self._kept_bytes += size
