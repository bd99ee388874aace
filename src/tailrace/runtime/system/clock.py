"""The machine's own clocks."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time and monotonic time of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Asked for every request: without a call of our own around it.
    monotonic = staticmethod(time.monotonic)
