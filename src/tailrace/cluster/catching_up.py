"""Waiting until the image shows all that the store has: what it does not show then does not exist."""

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
    """Looks at the store once for all who wait."""

    def __init__(self, metadata: ClusterMetadata, tasks: Tasks) -> None:
        self._metadata = metadata
        self._tasks = tasks
        self._waiting: list[Callable[[], None]] = []
        self._is_looking = False

    def call_when_current(self, then: Callable[[], None]) -> None:
        """Call back when the image shows everything that the store has now."""
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
                        logger.debug("cannot catch up with the store: %s; retrying", error)
                        await asyncio.sleep(RETRY_SECONDS)
                await self._metadata.settle()
                for then in waiting:
                    then()
        finally:
            self._is_looking = False
