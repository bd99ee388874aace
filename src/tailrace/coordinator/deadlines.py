"""Deadlines that are cheap to postpone: a heartbeat changes a number, not a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls its action when it expires, unless it is postponed or cleared first."""

    __slots__ = ("_action", "_due", "_handle", "_looks_at", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop = loop
        self._action = action
        self._due: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._looks_at = 0.0

    def set(self, milliseconds: float) -> None:
        """Expire after this many milliseconds; replaces any earlier deadline."""
        self._due = due = self._loop.time() + milliseconds / 1000
        if self._handle is not None:
            if self._looks_at <= due:
                return
            self._handle.cancel()
        self._look_at(due)

    def clear(self) -> None:
        """Do not expire."""
        self._due = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look_at(self, time: float) -> None:
        self._looks_at = time
        self._handle = self._loop.call_at(time, self._look)

    def _look(self) -> None:
        self._handle = None
        if self._due is None:
            return
        if self._loop.time() < self._due:
            self._look_at(self._due)
            return
        self._due = None
        self._action()
