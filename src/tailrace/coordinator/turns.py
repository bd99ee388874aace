"""Long work of a shard in turns: a piece of it, then everybody else, then the next piece.

The work is a generator that yields after each piece. What it knew before a `yield` may be different after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator


class Turns:
    """One kind of work, done from its beginning to its end each time it is asked for."""

    __slots__ = ("_handle", "_loop", "_next", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self._work: Iterator[None] | None = None
        self._next: Callable[[], Iterator[None]] | None = None

    def begin(self, work: Callable[[], Iterator[None]]) -> None:
        """Do work: at once if nothing is under way, else when that has ended; of what waits only the last is done."""
        if self._work is not None:
            self._next = work
            return
        self._work = work()
        self._take_turn()

    def end(self) -> None:
        """Do no more of it."""
        self._work = self._next = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _take_turn(self) -> None:
        self._handle = None
        assert self._work is not None
        try:
            next(self._work)
        except StopIteration:
            following, self._next = self._next, None
            self._work = None if following is None else following()
        except BaseException:
            self.end()
            raise
        if self._work is not None:  # else it was ended by what it did itself
            self._handle = self._loop.call_soon(self._take_turn)
