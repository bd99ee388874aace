"""One process of a simulation: all that it runs, so that it can be stopped, continued and ended as a whole.

A process is a context variable: whatever is started in its context (tasks, timers, callbacks) belongs to it, and so
does all that those start. The loop asks it before it runs anything of it. Invariants: nothing of a process runs while
it is paused, and all of that runs in its order when it goes on; nothing of it ever runs again once it has ended, not
even what cleans up. A process whose steps cost time is busy after each of them for as long as it cost, and meanwhile
does nothing else.
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
        #: Whether its steps take time, and what the present one has cost so far, in seconds.
        self.is_charged = False
        self.cost_seconds = 0.0
        self._is_busy = False
        #: What is run in here, or in a copy of it, is the process's.
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)
        self._held: list[asyncio.Handle] = []

    def holds_back(self, handle: asyncio.Handle) -> bool:
        """Whether something of the process must not run now; what it does then is up to the process."""
        if self.has_ended:
            return True
        if self.is_paused or self._is_busy:
            self._held.append(handle)
            return True
        return False

    def pause(self) -> None:
        """Stop it as SIGSTOP does: its sockets and files stay open, and whatever comes for it waits."""
        self.is_paused = True

    def resume(self, run_again: Callable[[list[asyncio.Handle]], None]) -> None:
        """Let it go on with all that has become due meanwhile."""
        self.is_paused = False
        self._let_go(run_again)

    def occupy(self) -> None:
        """Its last step takes time."""
        self._is_busy = True

    def set_free(self, run_again: Callable[[list[asyncio.Handle]], None]) -> None:
        """Its last step is over."""
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
    """The process that a context belongs to."""
    return context.get(_current)


def charge(seconds: float) -> None:
    """What the running step does costs time, if its process is charged for it."""
    process = _current.get()
    if process is not None and process.is_charged:
        process.cost_seconds += seconds


def current_process() -> Process | None:
    """The process that runs now."""
    return _current.get()
