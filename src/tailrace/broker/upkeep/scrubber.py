"""The scrub: reads every batch of every closed segment from time to time and checks its CRC, before it is needed.

Owns the pace: all data is spread evenly over `tailrace.scrub.interval.hours`, a few megabytes at a time, in the helper.
A damaged batch is logged and no longer served; nothing is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.partitions import Partitions
from tailrace.errors import StorageError
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.helper import HelperError
from tailrace.runtime.tasks import Tasks
from tailrace.storage.scrub import scrub_file
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.broker")

_STEP_BYTES = 8 << 20
#: The longest pause before the next check if there is nothing to read or the helper fails.
_LONGEST_REST_SECONDS = 3600.0
_HOUR_SECONDS = 3600


class Scrubber:
    """The broker's scrub, which runs in the background."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, partitions: Partitions, tasks: Tasks) -> None:
        self._interval_seconds = config.get_int("tailrace.scrub.interval.hours") * _HOUR_SECONDS
        self._runtime = runtime
        self._partitions = partitions
        self._tasks = tasks
        self.passes = 0
        self.bytes_read = 0
        #: The number of damaged batches since the start.
        self.problems = 0

    def start(self) -> None:
        """Start, unless the scrub is disabled."""
        if self._interval_seconds > 0:
            self._tasks.spawn(self._run(), "scrub")

    async def _run(self) -> None:
        while True:
            total = sum(segment.size for _, segment in self._cold_segments())
            if not total:
                await asyncio.sleep(min(self._interval_seconds, _LONGEST_REST_SECONDS))
                continue
            await self._scrub_all(self._interval_seconds / total)
            self.passes += 1

    def _cold_segments(self) -> Iterator[tuple[Partition, Segment]]:
        """Yield every closed segment that is served and not known to be damaged."""
        for partition in self._partitions:
            if partition.directory.failure is None:
                try:
                    for segment in partition.log.segments.sealed:
                        if segment.size and segment.corrupt_position is None:
                            yield partition, segment
                except StorageError as error:
                    partition.directory.fail(error)

    async def _scrub_all(self, seconds_per_byte: float) -> None:
        segments = list(self._cold_segments())
        if not segments:
            return
        # Start anywhere: otherwise, a broker that often restarts would never reach its last logs.
        first = self._runtime.random.randrange(len(segments))
        for partition, segment in segments[first:] + segments[:first]:
            position: int | None = 0
            while position is not None and self._is_served(partition, segment):
                step = min(_STEP_BYTES, segment.size - position)
                await asyncio.sleep(step * seconds_per_byte)
                if self._is_served(partition, segment):
                    position = await self._scrub(partition, segment, position)

    def _is_served(self, partition: Partition, segment: Segment) -> bool:
        return partition.directory.holds(partition.log) and not segment.is_removed and segment.corrupt_position is None

    async def _scrub(self, partition: Partition, segment: Segment, position: int) -> int | None:
        """Check some batches of a segment; return where to continue, or None at its end."""
        path = segment.log.path
        try:
            found = await self._runtime.helper.run_on_disk(scrub_file, path, position, _STEP_BYTES)
        except HelperError as error:
            logger.warning("scrub of %s at %d failed: %s; retrying", path, position, error)
            await asyncio.sleep(min(self._interval_seconds, _LONGEST_REST_SECONDS))
            return position
        except StorageError as error:
            if self._is_served(partition, segment) and segment.log.path == path:
                logger.error("scrub of %s failed: %s", path, error)
            return None
        self.bytes_read += found.position - position
        if not self._is_served(partition, segment):
            return None
        if found.problem is not None:
            self.problems += 1
            logger.error("scrub found %s damaged at position %d: %s", path, found.position, found.problem)
            segment.found_corrupt(found.position)
            return None
        return found.position if found.position < segment.size else None
