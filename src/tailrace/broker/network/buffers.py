"""Large receive buffers, used again: fresh memory costs more than the copy that goes into it.

Bounded in total; what does not fit is left to the allocator. Who gives a buffer back must hold no view of it.
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
        """A buffer of at least the size, with whatever is in it; None where there is no spare one."""
        rounded = 1 << (size - 1).bit_length()
        spare = self._spare.get(rounded)
        if not spare:
            return None
        self._kept_bytes -= rounded
        return spare.pop()

    def give(self, buffer: bytearray) -> None:
        """Take back a buffer of which nobody holds a view any more."""
        size = len(buffer)
        is_worth_it = _SMALLEST_BYTES <= size <= _LARGEST_BYTES and size & (size - 1) == 0
        if is_worth_it and self._kept_bytes + size <= _KEPT_BYTES:
            self._spare.setdefault(size, []).append(buffer)
            self._kept_bytes += size
