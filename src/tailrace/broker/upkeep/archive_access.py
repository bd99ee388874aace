"""Whether this broker can itself read the archives of the topics it holds, and what it may give up for that.

Owns one rule: retention takes a segment off this broker's disk only below the end of a manifest that this broker has
read itself, at the place that the topic names now. So a package that is not installed, a directory that is not mounted
here or credentials that are refused keep records on disk instead of making them unreadable. It must not know how an
archive is read.
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

#: How long a check counts: that the place is still there, and that it still is not.
_READABLE_SECONDS = 60.0
_UNREADABLE_SECONDS = 10.0
#: An archive that stays unreadable is spoken of so often.
_SAID_EVERY_SECONDS = 600.0
_CHECKS_AT_ONCE = 16
#: Whoever asks a broker has an answer before its own patience ends.
_ASKED_SECONDS = 8.0
NO_ANSWER = f"no answer within {_ASKED_SECONDS:.0f} s"


@dataclass(slots=True)
class _Check:
    """The last look at one topic's archive: which one it was, what it had, and why it could not be read, if so."""

    archive: TopicArchive
    state: ArchiveState
    failure: str | None
    at: float
    said_at: float | None = None
    #: Batches in it that nobody can decode.
    quarantined: int = 0


class ArchiveAccess:
    """Keeps trying the archives of what this broker holds."""

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
        """How many archives this broker cannot read."""
        return sum(1 for check in self._checks.values() if check.failure is not None)

    @property
    def quarantined(self) -> dict[str, int]:
        """How many batches of the archive of each topic nobody can decode, as of the last look at it."""
        return {check.archive.topic: check.quarantined for check in self._checks.values()}

    def is_unreadable(self, lineage: Lineage) -> bool:
        """Whether the last look at a topic's archive failed."""
        check = self._checks.get(lineage)
        return check is not None and check.failure is not None

    def look(self) -> list[asyncio.Task[None]]:
        """Let partitions know what may be given up of them, and begin the checks that are due."""
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
        """Look at the archive of a partition's topic now; why it cannot be read, None where it can."""
        archive = self._reads.archive_of(partition)
        state = self._metadata.image.archives.get(partition.lineage, ArchiveState(partition.lineage))
        task = self._begin(archive, state)
        # A task that is waited for in this way goes on if whoever asked goes away.
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
                logger.info("%s: its archive at %s can be read again", archive.topic, archive.uri)
                check.said_at = None
            return
        if check.said_at is not None and check.at < check.said_at + _SAID_EVERY_SECONDS:
            return
        check.said_at = check.at
        logger.warning(
            "%s: this broker cannot read the archive at %s: %s. Nothing of the topic is removed from its disk until it "
            "can",
            archive.topic,
            archive.uri,
            check.failure,
            extra={"topic": archive.topic},
        )


def _confirm(partitions: Iterable[Partition], archive: TopicArchive, check: _Check | None) -> None:
    """Let partitions know below which offset this broker has seen that the archive can be read."""
    seen = None if check is None or check.failure is not None or check.archive.uri != archive.uri else check.state
    for partition in partitions:
        partition.readable_end = 0 if seen is None else seen.archived_end(partition.partition.partition)


def require_readers(brokers: Iterable[BrokerImage]) -> None:
    """Refuse what only brokers can serve that are able to read archives."""
    unable = sorted(broker.broker_id for broker in brokers if not broker.reads_archives)
    if unable:
        who = f"Broker {unable[0]}" if len(unable) == 1 else f"Brokers {', '.join(map(str, unable))}"
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{who} cannot read archives (or runs an earlier version, which does not say): old records would be out "
            "of reach. Install what is needed there with: pip install 'tailrace[archive]', restart, and try again.",
        )
