"""The machine's own clocks."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time and monotonic time of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
