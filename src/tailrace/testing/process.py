"""One process of a simulation: all of its code, so that it can be stopped, continued and ended as a whole.

A process is a context variable: whatever is started in its context (tasks, timers, callbacks) belongs to it, and so
does everything that those start. The loop asks it before it runs any of its code. Invariants: nothing of a process runs
while it is paused, and all of it runs in its order when it continues; nothing ever runs again once it has ended, not
even cleanup code. A process whose steps cost time is busy after each of them for as long as it cost, and does nothing
else meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextvars import Context, ContextVar

_current: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """What one program runs in a simulation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.has_ended = False
        #: Whether its steps cost time, and the cost of the present one so far, in seconds.
        self.is_charged = False
        self.cost_seconds = 0.0
        self._is_busy = False
        #: Code that runs in this context, or in a copy of it, belongs to the process.
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)
        self._held: list[asyncio.Handle] = []

    def holds_back(self, handle: asyncio.Handle) -> bool:
        """True if code of the process must not run now; the process then keeps or drops it."""
        if self.has_ended:
            return True
        if self.is_paused or self._is_busy:
            self._held.append(handle)
            return True
        return False

    def pause(self) -> None:
        """Stop it as SIGSTOP does: its sockets and files stay open, and events for it wait."""
        self.is_paused = True

    def resume(self, run_again: Callable[[list[asyncio.Handle]], None]) -> None:
        """Continue it with everything that has become due meanwhile."""
        self.is_paused = False
        self._let_go(run_again)

    def occupy(self) -> None:
        """Mark it busy: its last step takes time."""
        self._is_busy = True

    def set_free(self, run_again: Callable[[list[asyncio.Handle]], None]) -> None:
        """End its last step."""
        self._is_busy = False
        self._let_go(run_again)

    def _let_go(self, run_again: Callable[[list[asyncio.Handle]], None]) -> None:
        if not self.is_paused and not self._is_busy and not self.has_ended:
            held, self._held = self._held, []
            run_again(held)

    def end(self) -> None:
        """End it at once."""
        self.has_ended = True
        self.is_paused = self._is_busy = False
        self._held.clear()


def process_of(context: Context) -> Process | None:
    """Return the process that a context belongs to."""
    return context.get(_current)


def charge(seconds: float) -> None:
    """Add a cost to the running step, if its process is charged for it."""
    process = _current.get()
    if process is not None and process.is_charged:
        process.cost_seconds += seconds


def current_process() -> Process | None:
    """Return the running process."""
    return _current.get()
