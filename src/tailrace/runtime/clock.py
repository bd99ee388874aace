"""The clock port. Timers are the event loop's own (`call_later`, `asyncio.sleep`): virtual in a simulation."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What time it is, twice: for people and records, and for measuring how long something took."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean anything.

        Time in which the machine was suspended counts, as leases go on to their ends meanwhile.
        """
        ...
