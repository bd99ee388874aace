"""The in-sync replicas of what this broker leads: who has fallen behind goes, who has caught up comes back.

A change counts for a partition from the moment it is asked for until it is known what became of it. So one that the
store does not answer is asked for again until it does, and nothing else is asked for that partition meanwhile.
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
    """Keeps the ISRs of one broker's partitions as they should be."""

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
        """Look after the ISRs from now on."""
        self._partitions.on_isr_wanted = self._look_at
        self._tasks.spawn(self._run(), "in-sync replicas")

    def _look_at(self, partition: Partition) -> None:
        """A follower has caught up."""
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
                # Who falls behind says nothing: all are looked at, often enough to notice in time.
                next_look = now + lag_ms / 2000
                due = dict.fromkeys(self._partitions)
            wanted = [(partition, change) for partition in due if (change := partition.leading.wanted_isr(now, lag_ms))]
            if wanted:
                await self._make(wanted)

    async def _make(self, wanted: list[tuple[Partition, IsrChange]]) -> None:
        """Have changes made, however long the store takes to say so."""
        for partition, change in wanted:
            logger.info("%s: ISR %s is to be %s", partition.partition, list(partition.isr), list(change.isr))
        is_told = False
        while True:
            try:
                await self._metadata.alter_isr([change for _, change in wanted])
                break
            except Unavailable as error:
                if not is_told:
                    logger.error("ISRs cannot be changed, which is tried on: %s", error)
                is_told = True
            await asyncio.sleep(_RETRY_SECONDS)
        for partition, change in wanted:
            partition.leading.isr_change_ended(change)
