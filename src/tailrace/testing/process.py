"""One process of a simulation: all that it runs, so that it can be stopped, continued and ended as a whole.

A process is a context variable: whatever is started in its context (tasks, timers, callbacks) belongs to it, and so
does all that those start. The loop asks it before it runs anything of it. Invariants: nothing of a process runs while
it is paused, and all of that runs in its order when it goes on; nothing of it ever runs again once it has ended, not
even what cleans up.
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
        #: What is run in here, or in a copy of it, is the process's.
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)
        self._held: list[asyncio.Handle] = []

    def holds_back(self, handle: asyncio.Handle) -> bool:
        """Whether something of the process must not run now; what it does then is up to the process."""
        if self.has_ended:
            return True
        if self.is_paused:
            self._held.append(handle)
        return self.is_paused

    def pause(self) -> None:
        """Stop it as SIGSTOP does: its sockets and files stay open, and whatever comes for it waits."""
        self.is_paused = True

    def resume(self, run_again: Callable[[list[asyncio.Handle]], None]) -> None:
        """Let it go on with all that has become due meanwhile."""
        self.is_paused = False
        held, self._held = self._held, []
        run_again(held)

    def end(self) -> None:
        """End it at once."""
        self.has_ended = True
        self.is_paused = False
        self._held.clear()


def process_of(context: Context) -> Process | None:
    """The process that a context belongs to."""
    return context.get(_current)


def current_process() -> Process | None:
    """The process that runs now."""
    return _current.get()
