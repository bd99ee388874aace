"""Producer ids handed out from blocks that the store reserves, so that none is ever given twice."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster.metadata import ClusterMetadata


class ProducerIds:
    """The rest of the last reserved block."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._block: Iterator[int] = iter(())

    async def next(self) -> int:
        """An id that nobody has; ids left in a block when the broker stops are never used."""
        while True:
            for producer_id in self._block:
                return producer_id
            block = await self._metadata.claim_producer_ids()
            self._block = iter(block)
