"""Futures without a loop: whoever waits is told inside the call that ends them, not in a later turn.

For what ends thousands of times a second: each turn of the loop that an answer waits for costs as much as the answer.
The names are those of `asyncio.Future`, so that both can stand in the same place. Whoever ends an outcome has finished
its own work, for what is called then may come back to it; what is called must not raise. A kind of its own may make
of what it is ended with what others wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """What becomes of something: a result, an error, or that nobody wants to know any more."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Outcome[T]], None]] = []

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._error is not None and isinstance(self._error, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """The error that it ended with, if any; raises where it was cancelled or has not ended."""
        error = self._error
        if error is None:
            if not self._is_done:
                raise asyncio.InvalidStateError("it has not ended")
        elif isinstance(error, asyncio.CancelledError):
            raise error
        return error

    def result(self) -> T:
        """What it ended with; raises what went wrong."""
        error = self.exception()
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # set with the end

    def set_result(self, result: T) -> None:
        """End well."""
        self._end(result, None)

    def set_exception(self, error: BaseException) -> None:
        """End with an error."""
        self._end(None, error)

    def cancel(self) -> bool:
        """Nobody wants to know any more; False where it has ended already."""
        if self._is_done:
            return False
        self._end(None, asyncio.CancelledError())
        return True

    def _end(self, result: T | None, error: BaseException | None) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError("it has ended already")
        self._is_done = True
        self._result = result
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Outcome[T]], None]) -> None:
        """Have somebody told of the end: when it comes, or at once."""
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[asyncio.Future[None], None, T]:
        if not self._is_done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        return self.result()
