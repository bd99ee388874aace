"""A thread that detects when one step blocks the event loop for too long.

It measures CPU time of the loop's thread, so that a busy machine causes no false alarm. While the loop has little to
do, the thread only reads a clock. Otherwise it schedules a call in the loop, and records the loop's stack if that call
takes too much CPU time to be answered. Measurement starts up to two checks late, so a step took at least the reported
time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType

logger = logging.getLogger("tailrace.loop")

_LOOKS_PER_THRESHOLD = 5
_SHOWN_CALLS = 15


class LoopWatchdog:
    """Watches the event loop in which it is created."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threshold_ms: int) -> None:
        self._loop = loop
        self._threshold = threshold_ms / 1000
        self._interval = self._threshold / _LOOKS_PER_THRESHOLD
        self._loop_thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._loop_thread)
        self._stopping = threading.Event()
        #: The CPU time when the loop was called, until it answers; and how long the last answer took.
        self._called_at: float | None = None
        self._used = 0.0
        self._stack = ""
        #: The number of steps that took too long.
        self.slow_steps = 0
        self._thread = threading.Thread(target=self._run, name="tailrace-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        self._thread.join()
        self._report()

    def _run(self) -> None:
        last = time.clock_gettime(self._clock)
        while not self._stopping.wait(self._interval):
            now = time.clock_gettime(self._clock)
            if self._called_at is None:
                self._report()
                if now - last >= self._interval / 2:
                    self._called_at = now
                    try:
                        self._loop.call_soon_threadsafe(self._answered)
                    except RuntimeError:  # the loop is closed
                        return
            elif not self._stack and now - self._called_at >= self._threshold:
                frame = sys._current_frames().get(self._loop_thread)
                self._stack = _shown(frame) if frame is not None else ""
            last = now

    def _answered(self) -> None:
        """The loop has reached its other work."""
        if self._called_at is not None:
            self._used = time.clock_gettime(self._clock) - self._called_at
            self._called_at = None

    def _report(self) -> None:
        used, stack = self._used, self._stack
        self._used, self._stack = 0.0, ""
        if used < self._threshold:
            return
        self.slow_steps += 1
        logger.warning(
            "A step of the event loop took %d ms of CPU time and delayed all requests: report this, with what clients "
            "asked the broker to do at that time: %s",
            used * 1000,
            stack or "(it ended before its stack was taken)",
            extra={"cpu_ms": int(used * 1000), "repeats": "slow step"},
        )


def _shown(frame: FrameType) -> str:
    """The innermost calls of a stack, on one line."""
    calls = traceback.extract_stack(frame)[-_SHOWN_CALLS:]
    return " > ".join(f"{call.name} ({'/'.join(call.filename.split('/')[-2:])}:{call.lineno})" for call in calls)
