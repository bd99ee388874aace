"""The clock port. Timers are the event loop's own (`call_later`, `asyncio.sleep`): virtual in a simulation."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The current time in two forms: for people and records, and for measuring durations."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences are meaningful.

        Includes time in which the machine was suspended, because leases expire during that time.
        """
        ...
