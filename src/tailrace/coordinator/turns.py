"""Long work of a shard, done in turns: one piece, then everything else on the event loop, then the next piece.

The work is a generator that yields after each piece. State may have changed across a `yield`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator


class Turns:
    """One kind of work; each request runs it from beginning to end."""

    __slots__ = ("_handle", "_loop", "_next", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self._work: Iterator[None] | None = None
        self._next: Callable[[], Iterator[None]] | None = None

    def begin(self, work: Callable[[], Iterator[None]]) -> None:
        """Start work now, or after the current run ends; of several waiting requests only the last one runs."""
        if self._work is not None:
            self._next = work
            return
        self._work = work()
        self._take_turn()

    def end(self) -> None:
        """Stop, and drop the rest of the work."""
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
        if self._work is not None:  # else the work ended itself
            self._handle = self._loop.call_soon(self._take_turn)
