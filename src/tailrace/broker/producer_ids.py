"""Producer ids from blocks that the store reserves, so that none is ever assigned twice.

The first caller that finds the block used up reserves the next one; concurrent callers wait for that and share its
failure. A caller that cannot wait is refused, and the next block is reserved meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from tailrace.cluster.metadata import ClusterMetadata
from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.broker")


class ProducerIds:
    """The rest of the last reserved block."""

    def __init__(self, metadata: ClusterMetadata, tasks: Tasks) -> None:
        self._metadata = metadata
        self._tasks = tasks
        self._block: deque[int] = deque()
        self._reserved: asyncio.Future[None] | None = None

    async def next(self) -> int:
        """Return an unused id; ids left in a block when the broker stops are never used."""
        await self.reserve()
        return self._block.popleft()

    async def reserve(self) -> None:
        """Wait until an unused id is reserved, so that `take` succeeds at once."""
        while not self._block:
            if self._reserved is not None:
                await asyncio.shield(self._reserved)
            else:
                await self._reserve()

    def take(self) -> int:
        """Return an unused id; refuse the caller while none is reserved."""
        if self._block:
            return self._block.popleft()
        if self._reserved is None:
            self._tasks.spawn(self._reserve_for_later(), "reserve producer ids")
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "New producer ids are being reserved.")

    async def _reserve_for_later(self) -> None:
        try:
            await self.reserve()
        except KafkaError as error:
            logger.warning("Cannot reserve producer ids: %s; retrying when one is needed", error)

    async def _reserve(self) -> None:
        reserved = self._reserved = asyncio.get_running_loop().create_future()
        try:
            self._block = deque(await self._metadata.claim_producer_ids())
        except KafkaError as error:
            reserved.set_exception(error)
            reserved.exception()  # there may be no other waiter
            raise
        finally:
            self._reserved = None
            if not reserved.done():
                reserved.set_result(None)
