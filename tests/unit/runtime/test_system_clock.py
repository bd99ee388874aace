"""The machine's clocks: its monotonic clock includes the time in which the machine sleeps."""

from __future__ import annotations

import time

from tailrace.runtime.system.clock import SystemClock


def test_time_in_which_the_machine_is_suspended_counts() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    told = SystemClock().monotonic()
    assert before <= told <= time.clock_gettime(time.CLOCK_BOOTTIME)
    # On a machine that was never suspended other clocks tell the same.
    assert SystemClock.monotonic.args == (time.CLOCK_BOOTTIME,)
