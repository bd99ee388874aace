"""A call in a thread of the simulated disk, which only runs when the loop gives it a turn.

It is a real thread, as nothing else can stop in the middle of an unaware call; but it never runs beside the loop: one
of the two waits for the other. So a seed still gives one order of events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context


class ThreadEnded(BaseException):
    """Ends a thread whose process has ended; no code handles it."""


class SimThread:
    """One call, done in turns."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._context = copy_context()
        self._turn = threading.Semaphore(0)
        self._turn_is_over = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="tailrace-simulated-disk", daemon=True)
        self.is_done = False
        self.is_ended = False
        self.result: object = None
        self.error: BaseException | None = None

    def go_on(self) -> None:
        """Called by the loop: let it run until it pauses or is done."""
        if self._thread.ident is None:
            self._thread.start()
        self._turn.release()
        self._turn_is_over.acquire()

    def end(self) -> None:
        """Called by the loop: end it where it paused."""
        self.is_ended = True
        if not self.is_done and threading.current_thread() is not self._thread:
            self.go_on()

    def pause(self) -> None:
        """Called by the call itself: let the loop have its turn."""
        if not self.is_ended:
            self._turn_is_over.release()
            self._turn.acquire()
        if self.is_ended:
            raise ThreadEnded

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self.result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001  raised again for the caller
            self.error = error
        self.is_done = True
        self._turn_is_over.release()
