"""Producer ids from blocks that the store reserves, so that none is ever assigned twice.

The first caller that finds the block used up reserves the next one; concurrent callers wait for that and share its
failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tailrace.cluster.metadata import ClusterMetadata
from tailrace.errors import KafkaError


class ProducerIds:
    """The rest of the last reserved block."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._block: Iterator[int] = iter(())
        self._reserved: asyncio.Future[None] | None = None

    async def next(self) -> int:
        """Return an unused id; ids left in a block when the broker stops are never used."""
        while True:
            for producer_id in self._block:
                return producer_id
            if self._reserved is not None:
                await asyncio.shield(self._reserved)
            else:
                await self._reserve()

    async def _reserve(self) -> None:
        reserved = self._reserved = asyncio.get_running_loop().create_future()
        try:
            self._block = iter(await self._metadata.claim_producer_ids())
        except KafkaError as error:
            reserved.set_exception(error)
            reserved.exception()  # there may be no other waiter
            raise
        finally:
            self._reserved = None
            if not reserved.done():
                reserved.set_result(None)
