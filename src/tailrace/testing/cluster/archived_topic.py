"""A topic of a simulated cluster that is archived, and whose records brokers delete as soon as they may.

Owns the location of the archive, its outages, and two archivers, so that they conflict. It is only imported if a run
has such a topic, because of the packages that read and write the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tailrace.archive.reader import ArchiveReader, keep_reader
from tailrace.model import TopicPartition
from tailrace.testing.cluster.archive_checks import ArchiveChecks
from tailrace.testing.cluster.archive_location import MemoryLocation, ShakyLocation
from tailrace.testing.cluster.archiver import ClusterArchiver
from tailrace.testing.cluster.client import ClusterClient
from tailrace.testing.cluster.history import ClusterHistory
from tailrace.testing.cluster.machines import SimCluster

HISTORY = "history"
_URI = "file:///simulated/archive"
CONFIGS = {"tailrace.archive.enable": "true", "tailrace.archive.uri": _URI, "local.retention.ms": "8000"}
#: Settings of the brokers with such a topic.
SETTINGS = {"log.retention.check.interval.ms": "4000"}
_ARCHIVERS = 2


class ArchivedTopic:
    """One partition, its archive, and its archivers."""

    def __init__(self, cluster: SimCluster, history: ClusterHistory, random: Random) -> None:
        files: dict[str, bytes] = {}
        self.partition = TopicPartition(HISTORY, 0)
        self.location = ShakyLocation(_URI, files, random)
        self.checks = ArchiveChecks(cluster, history, MemoryLocation(_URI, files), HISTORY)
        self.archivers: list[ClusterArchiver] = []
        self._loop = cluster.loop
        self._random = random
        # Real brokers read it by its URI in another process; here that is this process.
        keep_reader(_URI, ArchiveReader(self.location))

    @property
    def archived_end(self) -> int:
        return self.checks.ends.get(0, 0)

    def begin(self, client: Callable[[str], ClusterClient]) -> list[asyncio.Task[None]]:
        """Start archiving, to a location that is unavailable at times."""
        loop = self._loop
        for number in range(_ARCHIVERS):
            name = f"a{number}"
            archiver = ClusterArchiver(
                name,
                self.partition,
                client(name),
                loop.random_for(name),
                self.location,
                self.checks.told,
                self.checks.refused,
            )
            self.archivers.append(archiver)
        return [
            *[loop.create_task(archiver.run(), name=archiver.name) for archiver in self.archivers],
            loop.create_task(self._go_away(), name="away"),
        ]

    async def _go_away(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(15.0, 45.0))
            self.location.is_away = True
            await asyncio.sleep(self._random.uniform(1.0, 12.0))
            self.location.is_away = False
