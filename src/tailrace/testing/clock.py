"""The simulated clock of one host: virtual time plus an error that a test may change.

Owns the host's date. `monotonic` is the loop's own time, so that timers and measurements agree, plus the time that a
test says the host was suspended; a test may make it run slightly too fast or too slow.
"""

from __future__ import annotations

import asyncio


class SimClock:
    """A clock port in virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_ms: int = 1_700_000_000_000, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = start_ms
        #: How far the host's date is from the true one; may change at any time.
        self.skew_ms = skew_ms
        #: How long the host was suspended while its timers stood still; `monotonic` counts that, timers do not.
        self.suspended_seconds = 0.0
        #: How long the host was suspended while the loop's time continued, which `monotonic` counts.
        self.slept_seconds = 0.0
        #: The seconds that `monotonic` counts per true second. Set it before the host uses the clock.
        self.rate = 1.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, according to this host."""
        # Plus a nanosecond: 1.001 s is a little less than 1001 ms in floating point.
        return self._start_ms + int(self._loop.time() * 1000 + 1e-6) + self.skew_ms

    def monotonic(self) -> float:
        """Virtual seconds."""
        if self.rate == 1.0:
            return self._loop.time() + self.suspended_seconds
        # In nanoseconds, like real clocks: otherwise the time until a deadline may become too small for the loop to
        # wait.
        return round(self._loop.time() * self.rate, 9) + self.suspended_seconds

    def jump(self, by_ms: int) -> None:
        """Move the date forwards or back, as a time service does."""
        self.skew_ms += by_ms
