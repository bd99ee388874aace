"""Maintains the ISRs of the partitions that this broker leads: removes lagging followers, adds those that caught up.

A change counts for a partition from the moment it is requested until its outcome is known. So if the store does not
answer, the same change is requested until it does, and no other one for that partition meanwhile.
"""

from __future__ import annotations

import asyncio
import logging

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.partitions import Partitions
from tailrace.cluster.metadata import ClusterMetadata, IsrChange
from tailrace.cluster.store import Unavailable
from tailrace.replication.partition import Partition
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.replication")

_RETRY_SECONDS = 0.5


class IsrKeeper:
    """Maintains the ISRs of one broker's partitions."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, metadata: ClusterMetadata, partitions: Partitions, tasks: Tasks
    ) -> None:
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._partitions = partitions
        self._tasks = tasks
        self._due: dict[Partition, None] = {}
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Maintain the ISRs from now on."""
        self._partitions.on_isr_wanted = self._look_at
        self._tasks.spawn(self._run(), "in-sync replicas")

    def _look_at(self, partition: Partition) -> None:
        """Note that a follower has caught up."""
        self._due[partition] = None
        self._wake.set()

    async def _run(self) -> None:
        next_look = self._clock.monotonic()
        while True:
            lag_ms = self._config.get_int("replica.lag.time.max.ms")
            all_are_due = False
            try:
                async with asyncio.timeout(max(0.0, next_look - self._clock.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                all_are_due = True
            self._wake.clear()
            due, self._due = self._due, {}
            now = self._clock.monotonic()
            if all_are_due or now >= next_look:
                # A follower that falls behind sends no signal, so all partitions are checked often enough to notice in
                # time.
                next_look = now + lag_ms / 2000
                due = dict.fromkeys(self._partitions)
            wanted = [(partition, change) for partition in due if (change := partition.leading.wanted_isr(now, lag_ms))]
            if wanted:
                await self._make(wanted)

    async def _make(self, wanted: list[tuple[Partition, IsrChange]]) -> None:
        """Make the changes, however long the store takes to answer."""
        for partition, change in wanted:
            logger.info(
                "%s: changing the ISR from %s to %s", partition.partition, list(partition.isr), list(change.isr)
            )
        is_told = False
        while True:
            try:
                await self._metadata.alter_isr([change for _, change in wanted])
                break
            except Unavailable as error:
                if not is_told:
                    logger.error("cannot update ISRs: the metadata store does not answer: %s; retrying", error)
                is_told = True
            await asyncio.sleep(_RETRY_SECONDS)
        for partition, change in wanted:
            partition.leading.isr_change_ended(change)
