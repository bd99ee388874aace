"""Waits until the image shows everything in the store; what it does not show then does not exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.patience import RETRY_SECONDS
from tailrace.cluster.store import Unavailable
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.cluster")


class CatchingUp:
    """Reads the store once for all waiters."""

    def __init__(self, metadata: ClusterMetadata, tasks: Tasks) -> None:
        self._metadata = metadata
        self._tasks = tasks
        self._waiting: list[Callable[[], None]] = []
        self._is_looking = False

    def call_when_current(self, then: Callable[[], None]) -> None:
        """Call back once the image shows everything that is in the store now."""
        self._waiting.append(then)
        if not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._look(), "catch up with the store")

    async def _look(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                while True:
                    try:
                        await self._metadata.refresh()
                        break
                    except Unavailable as error:
                        logger.debug("Cannot read the metadata store to catch up: %s; retrying", error)
                        await asyncio.sleep(RETRY_SECONDS)
                await self._metadata.settle()
                for then in waiting:
                    then()
        finally:
            self._is_looking = False
