"""Background tasks of one owner, kept in order of their start so that a simulation stays deterministic.

A failed task reports to its owner through `on_failure`, so no background work fails silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The running tasks of one owner, which end together."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task, which the owner references until it ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    def abandon(self) -> None:
        """Cancel all tasks without waiting for them, like the end of a process."""
        for task in list(self._running):
            task.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks and wait for them to end."""
        running = list(self._running)
        self.abandon()
        for task in running:
            try:
                await task
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
            except Exception:  # noqa: BLE001, S110  its failure was reported when it ended
                pass
