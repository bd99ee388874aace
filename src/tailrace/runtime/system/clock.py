"""The machine's own clocks."""

from __future__ import annotations

import time
from functools import partial

#: Linux stops CLOCK_MONOTONIC while a machine is suspended: a lease would seem to be held that ended hours ago.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Wall time and monotonic time of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Asked for every request: without a call of our own around it.
    monotonic = staticmethod(partial(time.clock_gettime, _CLOCK))
