"""The partitions on this broker: opened, found, kept in order, and closed as the image says.

Owns the log directories and the periodic work on the logs in them (retention, checkpoints, expiry). A partition
whose directory failed stays known, so that clients are told of the storage error and not of a missing topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tailrace.broker.config import BrokerConfig
from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from tailrace.model import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.replication.traffic import TopicTraffic, Traffic
from tailrace.runtime import Runtime
from tailrace.runtime.disk import DiskFullError
from tailrace.runtime.tasks import Tasks
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import PartitionLog

logger = logging.getLogger("tailrace.broker")

_OPENED_PER_TURN = 50
#: How often a partition that could not be opened is tried again.
_REOPEN_SECONDS = 5.0

Work: TypeAlias = Callable[[], Awaitable[None]]


class _Unopened(NamedTuple):
    """A partition that is ours but could not be opened: where its log is, if it was found, and why not."""

    topic: TopicImage
    home: LogDirectory | None
    reason: KafkaError


class Partitions:
    """Every partition that this broker has a replica of."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, tasks: Tasks) -> None:
        self._config = config
        self._runtime = runtime
        self._tasks = tasks
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[UUID, int], Partition] = {}
        self._unopened: dict[tuple[str, int], _Unopened] = {}
        self._image = ClusterImage("", -1)
        self._is_started = False
        #: Told of a partition that could not be opened with the others and now was.
        self.on_reopened: Callable[[Partition], None] = _ignore
        #: What went in and out of the topics here.
        self.traffic = Traffic()
        #: Where an existing directory of a partition was found at start.
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self.directories = [
            LogDirectory(
                path,
                runtime,
                background_bytes=config.get_int("tailrace.flush.background.bytes"),
                background_ms=config.get_int("tailrace.flush.background.ms"),
            )
            for path in config.get_list("log.dirs")
        ]

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    @property
    def has_found_logs(self) -> bool:
        """Whether there were logs in the directories when they were opened."""
        return bool(self._homes)

    # --- finding

    def find(self, topic: str, number: int) -> Partition:
        """The partition of that name, or UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self._by_name.get((topic, number))
        if partition is None:
            if (unopened := self._unopened.get((topic, number))) is not None:
                raise unopened.reason
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return partition

    def find_by_id(self, topic_id: UUID, number: int) -> Partition:
        """The partition of that topic id, or UNKNOWN_TOPIC_ID."""
        partition = self._by_id.get((topic_id, number))
        if partition is None:
            for (_, unopened_number), unopened in self._unopened.items():
                if unopened.topic.topic_id == topic_id and unopened_number == number:
                    raise unopened.reason
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return partition

    def traffic_of(self, topic: str | UUID) -> TopicTraffic:
        """Where to count what concerns a topic, by name or id, also one that is not here."""
        if isinstance(topic, UUID):
            image = self._image.topics_by_id.get(topic)
            return self.traffic.find(None if image is None else image.name)
        return self.traffic.find(topic)

    @property
    def offline_count(self) -> int:
        """How many partitions are ours but not served, for their disk or because they could not be opened."""
        return len(self._unopened) + sum(1 for partition in self if partition.directory.failure is not None)

    # --- opening and closing

    async def open(self) -> bool:
        """Open the log directories; whether all of them were stopped cleanly."""
        for directory in self.directories:
            if directory.failure is not None:
                continue
            directory.on_promise = self._promised
            directory.on_failure = self._failed
            try:
                directory.open()
                for partition in directory.partition_directories():
                    self._homes[partition] = directory
            except StorageError as error:
                directory.fail(error)
        self._require_one_online()
        return all(directory.stopped_cleanly for directory in self.directories if directory.failure is None)

    def take_offline(self, path: str, reason: StorageError) -> None:
        """Go on without a log directory that is known to be unusable before anything is opened."""
        for directory in self.directories:
            if directory.path == path:
                directory.fail(reason)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Refuse directories that another broker or cluster wrote, and mark new ones as ours."""
        for directory in self.directories:
            if directory.failure is None:
                directory.identify(broker_id, cluster_id)

    def _require_one_online(self) -> None:
        if all(directory.failure is not None for directory in self.directories):
            reasons = "; ".join(str(directory.failure) for directory in self.directories)
            raise StorageError(f"no log directory is usable: {reasons}")

    async def apply(self, before: ClusterImage, after: ClusterImage, broker_id: int) -> None:
        """Open what the image newly gives to this broker, and close what it takes away."""
        self._image = after
        for topic in before.topics.values():
            if topic.topic_id not in after.topics_by_id:
                self._close_topic(topic)
        opened = 0
        for topic in after.topics.values():
            if topic is before.topics_by_id.get(topic.topic_id):
                continue
            for number, state in enumerate(topic.partitions):
                if self._image.topics_by_id.get(topic.topic_id) is not topic:
                    break  # deleted or changed while others had their turn
                unopened = self._unopened.get((topic.name, number))
                if unopened is not None and unopened.topic.topic_id == topic.topic_id:
                    continue  # a change to its topic is no reason to try again: `reopen` knows where its log is
                if broker_id in state.replicas:
                    self._open_partition(topic, number)
                    opened += 1
                    if opened % _OPENED_PER_TURN == 0:
                        await asyncio.sleep(0)

    def _open_partition(self, topic: TopicImage, number: int) -> None:
        known = self._by_id.get((topic.topic_id, number))
        state = topic.partitions[number]
        if known is not None:
            known.leader_epoch = state.leader_epoch
            known.isr_count = len(state.isr)
            self._configure(known, topic)
            return
        name = TopicPartition(topic.name, number)
        home = self._homes.pop(name, None)
        try:
            directory = home or self._new_home()
            directory.require_online()
            log = directory.open_partition(name, topic.topic_id, self._config.topic_config(topic.configs))
        except (StorageError, KafkaError, ConfigError) as error:
            if name not in self._unopened:
                logger.error("%s cannot be opened and is not served; it is tried again: %s", name, error)
            if home is not None:
                home.needs_recovery()
            reason = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} could not be opened: {error}")
            self._unopened[name] = _Unopened(topic, home, reason)
            return
        self._unopened.pop(name, None)
        partition = Partition(name, topic.topic_id, log, directory, state.leader_epoch)
        partition.isr_count = len(state.isr)
        partition.min_insync_replicas = self._config.topic_int("min.insync.replicas", topic.configs)
        self._by_name[topic.name, number] = partition
        self._by_id[topic.topic_id, number] = partition
        partition.traffic = self.traffic.of(topic.name)

    async def reconfigure(self) -> None:
        """Let every log go by the broker's configuration as it is now."""
        for count, partition in enumerate(self, 1):
            topic = self._image.topics_by_id.get(partition.topic_id)
            if topic is not None:
                self._configure(partition, topic)
            if count % _OPENED_PER_TURN == 0:
                await asyncio.sleep(0)

    def _configure(self, partition: Partition, topic: TopicImage) -> None:
        try:
            config = self._config.topic_config(topic.configs)
            partition.min_insync_replicas = self._config.topic_int("min.insync.replicas", topic.configs)
        except ConfigError as error:
            # Every change is checked before it is stored: another version of this software has stored it.
            logger.error("%s goes by its former configuration: %s", partition.partition, error)
            return
        if config != partition.log.config:
            partition.directory.reconfigure(partition.log, config)

    def _new_home(self) -> LogDirectory:
        """The emptiest directory, for a log that is not on this broker yet."""
        online = [directory for directory in self.directories if directory.failure is None]
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        if not self._is_started and len(online) < len(self.directories):
            # An empty log here would hide the one there, and give its offsets away a second time.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its log may be in a directory that is offline")
        return min(online, key=lambda directory: len(list(directory)))

    def _close_topic(self, topic: TopicImage) -> None:
        self.traffic.forget(topic.name)
        for number in range(len(topic.partitions)):
            partition = self._by_id.pop((topic.topic_id, number), None)
            if partition is None:
                unopened = self._unopened.pop((topic.name, number), None)
                if unopened is not None and unopened.home is not None and unopened.home.failure is None:
                    unopened.home.remove_partition(TopicPartition(topic.name, number))
                continue
            del self._by_name[topic.name, number]
            partition.close(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted."))
            partition.directory.remove_partition(partition.partition)

    def set_strays_aside(self) -> None:
        """Rename directories that no topic of the image owns: left by a deletion that a crash interrupted, mostly."""
        for partition, directory in self._homes.items():
            directory.set_aside(partition)
        self._homes.clear()

    def start(self) -> None:
        """Begin the periodic work."""
        self._is_started = True
        for directory in self.directories:
            directory.start()
        self._tasks.spawn(self._every("log.retention.check.interval.ms", self.remove_expired), "retention")
        self._tasks.spawn(self._every("log.flush.offset.checkpoint.interval.ms", self._checkpoint), "checkpoints")
        self._tasks.spawn(self._reopen_now_and_then(), "partitions that could not be opened")

    async def close(self) -> None:
        """Sync and close every log."""
        gone = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The broker is stopping.")
        for partition in self:
            partition.close(gone)
        for directory in self.directories:
            await directory.close()

    # --- what directories tell

    def _promised(self, log: PartitionLog) -> None:
        partition = self._by_name.get(log.partition)
        if partition is not None:
            partition.advance()

    def _failed(self, directory: LogDirectory) -> None:
        for partition in self:
            if partition.directory is directory:
                partition.close(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(directory.failure)))

    # --- periodic work

    async def _every(self, interval_key: str, work: Work) -> None:
        interval = self._config.get_int(interval_key) / 1000
        while True:
            await asyncio.sleep(interval)
            await work()

    async def _reopen_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_REOPEN_SECONDS)
            await self.reopen()

    async def reopen(self) -> None:
        """Try again to open partitions whose directory works: a disk that was full may have room now."""
        all_online = all(directory.failure is None for directory in self.directories)
        for (name, number), unopened in list(self._unopened.items()):
            topic = self._image.topics_by_id.get(unopened.topic.topic_id)
            if topic is None or (name, number) not in self._unopened:
                continue
            home = unopened.home
            if home is not None and home.failure is None:
                self._homes[TopicPartition(name, number)] = home
            elif home is not None or not all_online:
                continue  # only a restart can tell whether its log is on the disk that is offline
            self._open_partition(topic, number)
            if (name, number) not in self._unopened:
                logger.info("%s is open now and served", TopicPartition(name, number))
                self.on_reopened(self._by_name[name, number])
            await asyncio.sleep(0)

    async def remove_expired(self) -> None:
        """Apply retention to every log, and forget producers that fell silent."""
        silent_since_ms = self._runtime.clock.wall_ms() - self._config.get_int("producer.id.expiration.ms")
        for partition in self:
            if partition.directory.failure is not None:
                continue
            try:
                removed = partition.log.remove_expired(partition.high_watermark)
                partition.directory.remove_later(partition.log, removed)
            except (KafkaError, DiskFullError) as error:
                logger.error("retention of %s is held up: %s", partition.partition, error)
            except StorageError as error:
                partition.directory.fail(error)
            partition.log.producers.expire(silent_since_ms)
            await asyncio.sleep(0)

    async def _checkpoint(self) -> None:
        for directory in self.directories:
            if directory.failure is None:
                try:
                    await directory.save_checkpoints()
                except StorageError as error:
                    logger.error("checkpoints of %s are not written: %s", directory.path, error)


def _ignore(partition: Partition) -> None:
    """Nobody listens yet."""
