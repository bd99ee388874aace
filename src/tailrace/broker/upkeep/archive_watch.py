"""Measures how far the archives of led topics lag behind, and refuses producers if that fills the disk.

Checks every few seconds, and logs topics whose records are kept beyond their retention because they are not archived.
When their volume is almost full, producers to those topics are refused until there is room again: the producer still
has a refused record, while a dropped one is lost. Topics with the policy `drop` are never refused.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.partitions import Partitions
from tailrace.broker.upkeep.archive_access import ArchiveAccess
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.storage.log_directory import LogDirectory

logger = logging.getLogger("tailrace.archive")

_LOOK_SECONDS = 5.0
#: How often to log an archive that stays behind.
_SAID_EVERY_SECONDS = 600.0
_LOOKED_AT_PER_TURN = 50


class ArchiveLag(NamedTuple):
    """The unarchived part of a topic's partitions led here: the number of offsets, and the oldest record's age."""

    offsets: int
    oldest_ms: int


class ArchiveWatch:
    """Watches the archives of what one broker leads."""

    def __init__(
        self, config: BrokerConfig, runtime: Runtime, partitions: Partitions, access: ArchiveAccess, tasks: Tasks
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._partitions = partitions
        self._access = access
        self._tasks = tasks
        #: By topic, as of the last check.
        self.lags: dict[str, ArchiveLag] = {}
        self._held: dict[Partition, None] = {}
        self._said: dict[str, float] = {}

    @property
    def held_count(self) -> int:
        """The number of partitions that refuse writes until they are archived."""
        return len(self._held)

    @property
    def quarantined(self) -> dict[str, int]:
        """The number of undecodable batches in the archive of each topic."""
        return self._access.quarantined

    @property
    def unreadable_count(self) -> int:
        """The number of archives that this broker cannot read."""
        return self._access.unreadable_count

    def start(self) -> None:
        """Check from now on."""
        self._tasks.spawn(self._run(), "check of archive lag")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()
            self._access.look()

    async def look(self) -> None:
        """Measure how far archives lag behind, and refuse or accept producers."""
        lags: dict[str, ArchiveLag] = {}
        behind: dict[LogDirectory, list[Partition]] = {}
        for count, partition in enumerate(self._led_and_archived(), 1):
            topic = partition.partition.topic
            lag, former = self._lag_of(partition), lags.get(topic, ArchiveLag(0, 0))
            lags[topic] = ArchiveLag(former.offsets + lag.offsets, max(former.oldest_ms, lag.oldest_ms))
            if partition.log.retention.waits_for_archive:
                behind.setdefault(partition.directory, []).append(partition)
            if count % _LOOKED_AT_PER_TURN == 0:
                await asyncio.sleep(0)
        self.lags = lags
        # Unreadable archives are logged by the check that finds them.
        self._say_behind(
            [
                partition
                for partitions in behind.values()
                for partition in partitions
                if not self._access.is_unreadable(partition.lineage)
            ]
        )
        held: dict[Partition, None] = {}
        for directory, partitions in behind.items():
            reason = await self._reason_to_hold(directory)
            if reason is not None:
                held.update(dict.fromkeys(partitions))
                for partition in partitions:
                    partition.hold_for_archive(reason)
        for partition in self._held:
            if partition not in held:
                partition.hold_for_archive(None)
        self._held = held

    def _led_and_archived(self) -> list[Partition]:
        return [
            partition
            for partition in self._partitions
            if partition.is_leader and partition.log.config.is_archived and partition.directory.failure is None
        ]

    def _lag_of(self, partition: Partition) -> ArchiveLag:
        log = partition.log
        first = max(partition.archived_end, log.start_offset)
        if first >= partition.high_watermark:
            return ArchiveLag(0, 0)
        try:
            timestamp = log.timestamp_at(first)
        except StorageError as error:
            logger.warning("%s: cannot tell the age of the oldest unarchived record: %s", partition.partition, error)
            timestamp = -1
        age_ms = max(0, self._runtime.clock.wall_ms() - timestamp) if timestamp >= 0 else 0
        return ArchiveLag(partition.high_watermark - first, age_ms)

    def _say_behind(self, partitions: list[Partition]) -> None:
        now = self._runtime.clock.monotonic()
        behind = dict.fromkeys(partition.partition.topic for partition in partitions)
        for topic in behind:
            if now - self._said.get(topic, -_SAID_EVERY_SECONDS) < _SAID_EVERY_SECONDS:
                continue
            self._said[topic] = now
            lag = self.lags[topic]
            logger.warning(
                "%s: %d records are not archived, the oldest is %d s old; keeping those whose retention is over "
                "until they are archived. Check that its archiver runs (tailrace pipeline archive %s)",
                topic,
                lag.offsets,
                lag.oldest_ms // 1000,
                topic,
                extra={"topic": topic},
            )
        for topic in [topic for topic in self._said if topic not in behind]:
            del self._said[topic]
            logger.info("%s: the archive has caught up", topic, extra={"topic": topic})

    async def _reason_to_hold(self, directory: LogDirectory) -> KafkaError | None:
        """Return why a directory with unarchived records must not take more; None while there is room."""
        watermark = self._config.get_int("tailrace.archive.disk.watermark.percent")
        try:
            volume = await directory.offload(lambda: self._runtime.disk.volume(directory.path))
        except StorageError as error:
            logger.warning("cannot tell how full %s is: %s", directory.path, error)
            return None
        used_percent = 100 * (1 - volume.usable_bytes / max(1, volume.total_bytes))
        if used_percent < watermark:
            return None
        logger.error(
            "the volume of %s is %d percent full with records that are not archived, or whose archive this "
            "broker cannot read: refusing producers to their topics. Start the archiver, free space, or make the "
            "archive readable (see tailrace archive status)",
            directory.path,
            used_percent,
            extra={"log_dir": directory.path, "repeats": "held for the archive"},
        )
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"The disk is {used_percent:.0f} % full, and older records of this topic cannot be deleted because "
            "they are not archived, or because the broker cannot read their archive (see tailrace archive "
            "status). Start the archiver, free space, or set tailrace.archive.lag.policy=drop to lose them.",
        )
