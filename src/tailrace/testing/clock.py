"""The simulated clock of one host: virtual time plus an error of its own, which a test may change.

Owns the host's idea of the date. `monotonic` is the loop's own time, so that timers and measurements agree, plus what a
test says that the host slept through; a test may let it run a little too fast or too slow.
"""

from __future__ import annotations

import asyncio


class SimClock:
    """A clock port in virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_ms: int = 1_700_000_000_000, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = start_ms
        #: How far the host's date is from the true one; settable at any moment.
        self.skew_ms = skew_ms
        #: For how long the host was suspended in which timers stood still; `monotonic` counts that, timers do not.
        self.suspended_seconds = 0.0
        #: For how long the host was suspended while the loop's time went on, which `monotonic` counts.
        self.slept_seconds = 0.0
        #: How many seconds `monotonic` counts in a true second. Set it before the host uses the clock.
        self.rate = 1.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, as this host believes."""
        # A nanosecond on top: 1.001 s is a little less than 1001 ms in floating point.
        return self._start_ms + int(self._loop.time() * 1000 + 1e-6) + self.skew_ms

    def monotonic(self) -> float:
        """Virtual seconds."""
        if self.rate == 1.0:
            return self._loop.time() + self.suspended_seconds
        # In nanoseconds, as real clocks: else what is left until a moment gets too small for the loop to wait for.
        return round(self._loop.time() * self.rate, 9) + self.suspended_seconds

    def jump(self, by_ms: int) -> None:
        """Set the date forwards or back, as a time service does."""
        self.skew_ms += by_ms
