"""The machine's clocks."""

from __future__ import annotations

import time
from functools import partial

#: Linux stops CLOCK_MONOTONIC while a machine is suspended: leases that expired hours ago would seem to be held.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Wall clock and monotonic clock of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Called for every request, hence no wrapper function.
    monotonic = staticmethod(partial(time.clock_gettime, _CLOCK))
