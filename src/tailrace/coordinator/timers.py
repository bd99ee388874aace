"""The timers of one shard, by name: what they do may write, and is tried again when the journal refuses.

They end with the shard. What is put off thousands of times a second is better served by a `Deadline` of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

from tailrace.coordinator.deadlines import Deadline
from tailrace.errors import KafkaError

logger = logging.getLogger("tailrace.coordinator")

#: How long a timer waits before it tries again what was refused.
RETRY_MS = 500


class Timers:
    """Every timer that is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[Hashable, Deadline] = {}
        self._is_over = False

    def __contains__(self, name: Hashable) -> bool:
        return name in self._deadlines

    def set(self, name: Hashable, milliseconds: float, action: Callable[[], None]) -> None:
        """Do something that long from now; a timer of the same name no longer counts."""
        self.clear(name)
        if self._is_over:
            return
        deadline = self._deadlines[name] = Deadline(self._loop, lambda: self._run(name, action))
        deadline.set(milliseconds)

    def clear(self, name: Hashable) -> None:
        """Do it no more."""
        deadline = self._deadlines.pop(name, None)
        if deadline is not None:
            deadline.clear()

    def end(self) -> None:
        """Clear every timer, and set none from now on."""
        self._is_over = True
        for name in list(self._deadlines):
            self.clear(name)

    def _run(self, name: Hashable, action: Callable[[], None]) -> None:
        del self._deadlines[name]
        try:
            action()
        except KafkaError as error:
            if name in self._deadlines:
                return  # the action has set it again itself
            logger.debug("timer %s was refused: %s; retrying in %d ms", name, error, RETRY_MS)
            self.set(name, RETRY_MS, action)
