"""The named timers of one shard; an action may write, and the timer retries it if the journal refuses.

All timers end with the shard. For a timer that is postponed thousands of times a second, use a `Deadline` instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

from tailrace.coordinator.deadlines import Deadline
from tailrace.errors import KafkaError

logger = logging.getLogger("tailrace.coordinator")

#: Delay before a timer retries a refused action.
RETRY_MS = 500


class Timers:
    """All timers of a shard."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[Hashable, Deadline] = {}
        self._is_over = False

    def __contains__(self, name: Hashable) -> bool:
        return name in self._deadlines

    def set(self, name: Hashable, milliseconds: float, action: Callable[[], None]) -> None:
        """Run an action after this many milliseconds; replaces a timer of the same name."""
        self.clear(name)
        if self._is_over:
            return
        deadline = self._deadlines[name] = Deadline(self._loop, lambda: self._run(name, action))
        deadline.set(milliseconds)

    def clear(self, name: Hashable) -> None:
        """Cancel a timer."""
        deadline = self._deadlines.pop(name, None)
        if deadline is not None:
            deadline.clear()

    def end(self) -> None:
        """Cancel every timer and ignore new ones."""
        self._is_over = True
        for name in list(self._deadlines):
            self.clear(name)

    def _run(self, name: Hashable, action: Callable[[], None]) -> None:
        del self._deadlines[name]
        try:
            action()
        except KafkaError as error:
            if name in self._deadlines:
                return  # the action has already set it again
            logger.debug("Timer %s failed: %s; retrying in %d ms", name, error, RETRY_MS)
            self.set(name, RETRY_MS, action)
