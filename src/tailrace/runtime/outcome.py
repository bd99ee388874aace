"""Futures without an event loop: callbacks run inside the call that completes them, not in a later iteration.

For operations that complete thousands of times a second, where each extra loop iteration costs as much as the answer
itself. Names match `asyncio.Future`, so that both can be used in the same place. The code that completes an outcome
must have finished its own work, because callbacks may call back into it. Callbacks must not raise. A subclass may
convert the result for its waiters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """The outcome of an operation: a result, an error, or cancellation."""

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
        """Its error, or None; raises if it was cancelled or is not done."""
        error = self._error
        if error is None:
            if not self._is_done:
                raise asyncio.InvalidStateError("outcome is not done")
        elif isinstance(error, asyncio.CancelledError):
            raise error
        return error

    def result(self) -> T:
        """Its result; raises its error."""
        error = self.exception()
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # set on completion

    def set_result(self, result: T) -> None:
        """Complete with a result."""
        self._end(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Complete with an error."""
        self._end(None, error)

    def cancel(self) -> bool:
        """Cancel; False if it was already done."""
        if self._is_done:
            return False
        self._end(None, asyncio.CancelledError())
        return True

    def _end(self, result: T | None, error: BaseException | None) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError("outcome is already done")
        self._is_done = True
        self._result = result
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Outcome[T]], None]) -> None:
        """Call back on completion, or at once if it is already done."""
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
