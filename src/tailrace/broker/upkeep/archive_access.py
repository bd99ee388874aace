"""Whether this broker itself can read the archives of its topics, and how much it may delete because of that.

Owns one rule: retention deletes a segment from this broker's disk only below the end of a manifest that this broker
itself has read, at the topic's current archive location. So a missing package, an unmounted directory or refused
credentials keep records on disk instead of making them unreadable. This module must not know how to read an archive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.archive.layout import TopicArchive
from tailrace.broker.fetching.archive_reads import ArchiveReads
from tailrace.broker.partitions import Partitions
from tailrace.cluster.archives import ArchiveState
from tailrace.cluster.image import BrokerImage
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage
from tailrace.replication.partition import Partition
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.archive")

#: How long a check is valid, if the archive was readable and if it was not.
_READABLE_SECONDS = 60.0
_UNREADABLE_SECONDS = 10.0
#: How often to log an archive that stays unreadable.
_SAID_EVERY_SECONDS = 600.0
_CHECKS_AT_ONCE = 16
#: A client of the broker gets its response before its own timeout.
_ASKED_SECONDS = 8.0
NO_ANSWER = f"no answer within {_ASKED_SECONDS:.0f} s"


@dataclass(slots=True)
class _Check:
    """The last check of one topic's archive: its location, its state, and why it could not be read, if so."""

    archive: TopicArchive
    state: ArchiveState
    failure: str | None
    at: float
    said_at: float | None = None
    #: The number of undecodable batches in it.
    quarantined: int = 0


class ArchiveAccess:
    """Checks the archives of this broker's topics from time to time."""

    def __init__(
        self, reads: ArchiveReads, metadata: ClusterMetadata, partitions: Partitions, clock: Clock, tasks: Tasks
    ) -> None:
        self._reads = reads
        self._metadata = metadata
        self._partitions = partitions
        self._clock = clock
        self._tasks = tasks
        self._checks: dict[Lineage, _Check] = {}
        self._under_way: dict[Lineage, asyncio.Task[None]] = {}

    @property
    def unreadable_count(self) -> int:
        """The number of archives that this broker cannot read."""
        return sum(1 for check in self._checks.values() if check.failure is not None)

    @property
    def quarantined(self) -> dict[str, int]:
        """The number of undecodable batches in the archive of each topic, as of its last check."""
        return {check.archive.topic: check.quarantined for check in self._checks.values()}

    def is_unreadable(self, lineage: Lineage) -> bool:
        """True if the last check of a topic's archive failed."""
        check = self._checks.get(lineage)
        return check is not None and check.failure is not None

    def look(self) -> list[asyncio.Task[None]]:
        """Tell partitions how much may be deleted, and start the checks that are due."""
        held: dict[Lineage, list[Partition]] = {}
        for partition in self._partitions:
            if partition.log.config.is_archived:
                held.setdefault(partition.lineage, []).append(partition)
        for lineage in [each for each in self._checks if each not in held]:
            del self._checks[lineage]
        begun = []
        for lineage, partitions in held.items():
            state = self._metadata.image.archives.get(lineage)
            if state is None or not state.version:
                continue
            archive = self._reads.archive_of(partitions[0])
            check = self._checks.get(lineage)
            _confirm(partitions, archive, check)
            if self._is_due(archive, check) and len(self._under_way) < _CHECKS_AT_ONCE:
                begun.append(self._begin(archive, state))
        return begun

    async def check(self, partition: Partition) -> str | None:
        """Check the archive of a partition's topic now; return why it cannot be read, or None if it can."""
        archive = self._reads.archive_of(partition)
        state = self._metadata.image.archives.get(partition.lineage, ArchiveState(partition.lineage))
        task = self._begin(archive, state)
        # asyncio.wait does not cancel the task if the caller is cancelled.
        done, _ = await asyncio.wait([task], timeout=_ASKED_SECONDS)
        check = self._checks.get(partition.lineage)
        return NO_ANSWER if not done or check is None else check.failure

    def _is_due(self, archive: TopicArchive, check: _Check | None) -> bool:
        if check is None or check.archive != archive:
            return True
        counts_for = _READABLE_SECONDS if check.failure is None else _UNREADABLE_SECONDS
        return self._clock.monotonic() >= check.at + counts_for

    def _begin(self, archive: TopicArchive, state: ArchiveState) -> asyncio.Task[None]:
        task = self._under_way.get(archive.lineage)
        if task is None:
            task = self._tasks.spawn(self._look_at(archive, state), f"check of the archive of {archive.topic}")
            self._under_way[archive.lineage] = task
        return task

    async def _look_at(self, archive: TopicArchive, state: ArchiveState) -> None:
        try:
            found = await self._reads.check(archive)
        finally:
            self._under_way.pop(archive.lineage, None)
        former = self._checks.get(archive.lineage)
        failure, quarantined = (found, 0) if isinstance(found, str) else (None, found)
        if failure is not None and former is not None:
            quarantined = former.quarantined
        said_at = None if former is None else former.said_at
        check = _Check(archive, state, failure, self._clock.monotonic(), said_at, quarantined)
        self._checks[archive.lineage] = check
        self._say(check)

    def _say(self, check: _Check) -> None:
        archive = check.archive
        if check.failure is None:
            if check.said_at is not None:
                logger.info("%s: the archive at %s is readable again", archive.topic, archive.uri)
                check.said_at = None
            return
        if check.said_at is not None and check.at < check.said_at + _SAID_EVERY_SECONDS:
            return
        check.said_at = check.at
        logger.warning(
            "%s: cannot read the archive at %s: %s; keeping all records of the topic on disk until it is readable",
            archive.topic,
            archive.uri,
            check.failure,
            extra={"topic": archive.topic},
        )


def _confirm(partitions: Iterable[Partition], archive: TopicArchive, check: _Check | None) -> None:
    """Tell partitions up to which offset this broker has found the archive readable."""
    seen = None if check is None or check.failure is not None or check.archive.uri != archive.uri else check.state
    for partition in partitions:
        partition.readable_end = 0 if seen is None else seen.archived_end(partition.partition.partition)


def require_readers(brokers: Iterable[BrokerImage]) -> None:
    """Refuse a request that requires all brokers to be able to read archives."""
    unable = sorted(broker.broker_id for broker in brokers if not broker.reads_archives)
    if unable:
        who = f"Broker {unable[0]}" if len(unable) == 1 else f"Brokers {', '.join(map(str, unable))}"
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{who} cannot read archives, or runs an earlier version that does not report it: clients could not "
            "read old records there. Run pip install 'tailrace[archive]' on that machine, restart the broker, "
            "and retry.",
        )
