"""The partitions on this broker: opens them, gives them their roles, finds and maintains them, and closes them.

Follows the image. Owns the log directories and the periodic work on their logs (retention, checkpoints, expiry). A
partition in a failed directory stays known, so that clients get a storage error and not a missing topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.following.fetchers import ReplicaFetchers
from tailrace.cluster.image import NO_LEADER, ClusterImage, TopicImage
from tailrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from tailrace.model import Lineage, TopicId, TopicPartition
from tailrace.records.batch import BatchHeader, check_produced
from tailrace.replication.partition import Partition
from tailrace.replication.reading import ArchiveReader
from tailrace.replication.traffic import TopicTraffic, Traffic
from tailrace.replication.waiters import again
from tailrace.runtime import Runtime
from tailrace.runtime.disk import PassingStorageError, TooManyOpenFilesError
from tailrace.runtime.long_work import LongWork
from tailrace.runtime.tasks import Tasks
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.broker")

_OPENED_PER_TURN = 50
_REMOVED_PER_TURN = 50
#: Segments of one log, each of which has several files to rename.
_EXPIRED_PER_TURN = 20
#: Changing a role is cheap compared with opening a file.
_ROLES_PER_TURN = 500
#: How often to retry to open a partition.
_REOPEN_SECONDS = 5.0
#: The limits on the partitions and batches that are remembered because they arrived too early and will be sent again.
_MOST_MISSED_PARTITIONS = 100
_MOST_MISSED_BATCHES = 20

Work: TypeAlias = Callable[[], Awaitable[None]]


class _Unopened(NamedTuple):
    """A partition of this broker that could not be opened: the directory of its log, if it was found, and the error."""

    topic: TopicImage
    home: LogDirectory | None
    reason: KafkaError


class Partitions:
    """Every partition of which this broker has a replica."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        fetchers: ReplicaFetchers,
        holds_lease: Callable[[], bool],
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._tasks = tasks
        self._fetchers = fetchers
        #: Whether the other brokers certainly consider this broker alive.
        self.holds_lease = holds_lease
        #: Whether another broker may lead this one's partitions before this one could notice.
        self.is_unsettled: Callable[[], bool] = lambda: False
        #: Work that is too long for one step of the loop, of all partitions and handlers.
        self.long_work = LongWork()
        #: Reads what only archives have.
        self.archive_reader: ArchiveReader | None = None
        self._broker_id = config.get_int("node.id")
        self._by_name: dict[tuple[str, int], Partition] = {}
        #: By the current topic ids, and by lineages.
        self._by_id: dict[tuple[TopicId, int], Partition] = {}
        self._by_lineage: dict[tuple[Lineage, int], Partition] = {}
        self._unopened: dict[tuple[str, int], _Unopened] = {}
        #: Batches of idempotent producers that arrived too early, for partitions by the name or id of their topic.
        self._missed: dict[tuple[str | TopicId, int], list[BatchHeader]] = {}
        self._image = ClusterImage("", NO_LEADER)
        self._broker_epochs: dict[int, int] = {}
        #: The last registered epoch of each broker, also of those that are not registered now.
        self.last_broker_epochs: dict[int, int] = {}
        self._is_started = False
        #: Whether the broker is about to stop, so that it accepts no records that other replicas would need first.
        self._is_stopping = False
        #: Called with a partition that was opened after an earlier failure.
        self.on_reopened: Callable[[Partition], None] = _ignore
        #: Called with a led partition whose ISR should change.
        self.on_isr_wanted: Callable[[Partition], None] = _ignore
        #: Called with a log directory that has failed, after its partitions were closed.
        self.on_directory_failed: Callable[[LogDirectory], None] = _ignore_failure
        #: The traffic of this broker's topics.
        self.traffic = Traffic()
        #: The directory in which each existing partition was found at the start.
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

    def is_cut_off(self, topic: TopicImage, number: int) -> bool:
        """True if this broker leads a partition according to the image but another one may lead by now."""
        partition = self._by_lineage.get((topic.lineage, number))
        return partition is not None and partition.is_cut_off

    @property
    def has_found_logs(self) -> bool:
        """True if the directories contained logs when they were opened."""
        return bool(self._homes)

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """The ids of the log directories that were identified."""
        return tuple(directory.directory_id for directory in self.directories if directory.directory_id)

    @property
    def stopped_in_epoch(self) -> int | None:
        """The broker epoch in which all log directories were stopped cleanly; None if they were not, or differ."""
        epochs = dict.fromkeys(
            directory.stopped_in_epoch if directory.stopped_cleanly else None for directory in self.directories
        )
        return next(iter(epochs)) if len(epochs) == 1 else None

    @property
    def broker_epoch(self) -> int:
        """The broker epoch that a clean stop would write to the log directories."""
        return self.directories[0].broker_epoch

    @broker_epoch.setter
    def broker_epoch(self, epoch: int) -> None:
        for directory in self.directories:
            directory.broker_epoch = epoch

    # --- lookup

    def find(self, topic: str, number: int) -> Partition:
        """Return the partition by its topic's name; refuse if it is not here."""
        partition = self._by_name.get((topic, number))
        if partition is None:
            if (unopened := self._unopened.get((topic, number))) is not None:
                raise again(unopened.reason)
            self._require_not_elsewhere(self._image.topics.get(topic), number)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return partition

    def find_by_id(self, topic_id: TopicId, number: int) -> Partition:
        """Return the partition by its topic's id; refuse if it is not here."""
        partition = self._by_id.get((topic_id, number))
        if partition is None:
            for (_, unopened_number), unopened in self._unopened.items():
                if unopened.topic.topic_id == topic_id and unopened_number == number:
                    raise again(unopened.reason)
            self._require_not_elsewhere(self._image.topics_by_id.get(topic_id), number)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return partition

    def find_by_lineage(self, lineage: Lineage, number: int) -> Partition:
        """Return the partition by its topic's lineage; refuse if it is not here."""
        partition = self._by_lineage.get((lineage, number))
        return self.find_by_id(self._image.topic_id_of(lineage), number) if partition is None else partition

    def missed(self, topic: str | TopicId, number: int, records: memoryview) -> None:
        """Remember a batch that arrived before its partition: the next one must not be accepted as the first."""
        try:
            header = check_produced(records)
        except KafkaError:
            return  # it will not be sent again
        if header.producer_id < 0:
            return
        headers = self._missed.setdefault((topic, number), [])
        if len(headers) < _MOST_MISSED_BATCHES:
            headers.append(header)
        if len(self._missed) > _MOST_MISSED_PARTITIONS:
            del self._missed[next(iter(self._missed))]

    def _require_not_elsewhere(self, topic: TopicImage | None, number: int) -> None:
        if topic is not None and 0 <= number < len(topic.partitions):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {self._broker_id} has no replica of {topic.name}-{number}."
            )

    def traffic_of(self, topic: str | TopicId) -> TopicTraffic:
        """Return the counters of a topic, by name or id, even if it is not here."""
        if not isinstance(topic, str):
            image = self._image.topics_by_id.get(topic)
            return self.traffic.find(None if image is None else image.name)
        return self.traffic.find(topic)

    @property
    def offline_count(self) -> int:
        """The number of this broker's partitions that a failed disk or an error while opening keeps offline."""
        return len(self._unopened) + sum(1 for partition in self if partition.directory.failure is not None)

    # --- opening and closing

    async def open(self) -> bool:
        """Open the log directories; return whether all of them were stopped cleanly."""
        for directory in self.directories:
            if directory.failure is not None:
                continue
            directory.on_promise = self._promised
            directory.on_failure = self._failed
            try:
                directory.open()
                for partition in directory.partition_directories():
                    self._homes[partition] = directory
            except TooManyOpenFilesError:
                raise  # the directory is not at fault, and the broker cannot run without it
            except StorageError as error:
                directory.fail(error)
        self._require_one_online()
        return all(directory.stopped_cleanly for directory in self.directories if directory.failure is None)

    def take_offline(self, path: str, reason: StorageError) -> None:
        """Take a log directory offline that is known to be unusable before anything is opened."""
        for directory in self.directories:
            if directory.path == path:
                directory.fail(reason)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Refuse directories of another broker or cluster, and mark new ones as this broker's."""
        for directory in self.directories:
            if directory.failure is None:
                directory.identify(broker_id, cluster_id)

    def _require_one_online(self) -> None:
        if all(directory.failure is not None for directory in self.directories):
            reasons = "; ".join(str(directory.failure) for directory in self.directories)
            raise StorageError(f"no log directory is usable: {reasons}")

    async def apply(self, before: ClusterImage, after: ClusterImage) -> None:
        """Apply an image: open new partitions, change roles, close partitions that were taken away."""
        self._image = after
        self._broker_epochs = {broker.broker_id: broker.epoch for broker in after.brokers.values()}
        self.last_broker_epochs.update(self._broker_epochs)
        await self._close_topics(
            [topic for topic in before.topics.values() if topic.lineage not in after.topics_by_lineage]
        )
        opened = seen = 0
        for topic in after.topics.values():
            former = before.topics_by_lineage.get(topic.lineage)
            archive, former_archive = after.archives.get(topic.lineage), before.archives.get(topic.lineage)
            if topic is former and after.brokers is before.brokers and archive is former_archive:
                continue
            if former is not None and former.topic_id != topic.topic_id:
                self._rename(former, topic)
            # A change of roles does not change the configuration, and such changes are far more frequent.
            is_configured = former is not None and topic.configs == former.configs
            for number, state in enumerate(topic.partitions):
                if self._broker_id in state.replicas:
                    if former is None:
                        await self._until_forgotten(TopicPartition(topic.name, number))
                    opened += self._open_or_update(topic, number, is_configured=is_configured)
                elif former is not None and topic is not former:
                    self._give_up(topic, number)
                seen += 1
                if (opened and opened % _OPENED_PER_TURN == 0) or seen % _ROLES_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def _until_forgotten(self, partition: TopicPartition) -> None:
        """Wait until the checkpoints have no entry of an earlier topic's partition with the same name."""
        for directory in self.directories:
            if directory.failure is None and directory.checkpoints.has_outdated(partition):
                await directory.checkpoints.forget_removed()

    def _open_or_update(self, topic: TopicImage, number: int, *, is_configured: bool) -> bool:
        """Make a partition match the image; return whether a log was opened for it."""
        unopened = self._unopened.get((topic.name, number))
        if unopened is not None and unopened.topic.lineage == topic.lineage:
            return False  # a change to its topic is no reason to retry: `reopen` knows where its log is
        known = self._by_lineage.get((topic.lineage, number))
        if known is None:
            self._open_partition(topic, number)
            return True
        if not is_configured:
            self._configure(known, topic)
        self._apply_archive(known)
        self._apply_state(known, topic, number)
        return False

    def _open_partition(self, topic: TopicImage, number: int) -> None:
        name = TopicPartition(topic.name, number)
        home = self._homes.pop(name, None)
        try:
            directory = home or self._new_home()
            directory.require_online()
            log = directory.open_partition(name, topic.lineage, self._config.topic_config(topic.configs))
        except (StorageError, KafkaError, ConfigError) as error:
            if name not in self._unopened:
                logger.error("cannot open %s: %s; it is not served; retrying", name, error)
            if home is not None:
                home.needs_recovery()
            reason = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot open {name}: {error}")
            self._unopened[name] = _Unopened(topic, home, reason)
            return
        self._unopened.pop(name, None)
        self._take_missed(log, topic, number)
        partition = Partition(name, topic.lineage, log, directory, self._broker_id, holds_lease=self.holds_lease)
        partition.is_unsettled = self.is_unsettled
        partition.long_work = self.long_work
        partition.reader.archive = self.archive_reader
        partition.on_isr_wanted = self._isr_wanted
        self._by_name[topic.name, number] = partition
        self._by_lineage[topic.lineage, number] = partition
        self._by_id[topic.topic_id, number] = partition
        partition.traffic = self.traffic.of(topic.name)
        if self._is_stopping:
            partition.leading.hold_appends()
        self._configure(partition, topic)
        self._apply_archive(partition)
        self._apply_state(partition, topic, number)

    def _take_missed(self, log: PartitionLog, topic: TopicImage, number: int) -> None:
        """Let a log expect again what producers sent before it was here."""
        for known_as in (topic.name, topic.topic_id):
            for header in self._missed.pop((known_as, number), ()):
                log.producers.refused(header)

    def _rename(self, former: TopicImage, topic: TopicImage) -> None:
        """Let clients find a topic's partitions by its new id instead of the old one."""
        for number in range(len(former.partitions)):
            partition = self._by_id.pop((former.topic_id, number), None)
            if partition is not None:
                self._by_id[topic.topic_id, number] = partition
                self._take_missed(partition.log, topic, number)
            elif (unopened := self._unopened.get((topic.name, number))) is not None:
                self._unopened[topic.name, number] = unopened._replace(topic=topic)

    def _apply_archive(self, partition: Partition) -> None:
        """Tell a partition which of its offsets are archived."""
        state = self._image.archives.get(partition.lineage)
        number = partition.partition.partition
        if state is None or not partition.log.config.is_archived:
            partition.apply_archive(None, 0)
        else:
            partition.apply_archive(state.readable(number), state.archived_end(number))

    def _apply_state(self, partition: Partition, topic: TopicImage, number: int) -> None:
        """Make a partition lead or follow as the image says."""
        state = topic.partitions[number]
        if partition.is_internal and len(state.replicas) != len(partition.replicas):
            self._configure(partition, topic)
        try:
            partition.apply_state(state, self._broker_epochs, self._runtime.clock.monotonic())
        except StorageError as error:
            # Its leader epochs cannot be written: that takes the disk offline, not the broker.
            partition.directory.fail(error)
        leader = self._image.brokers.get(state.leader)
        if leader is None or partition.is_leader or partition.directory.failure is not None:
            self._fetchers.unfollow(partition)
        else:
            self._fetchers.follow(partition, leader, topic.topic_id)

    def _isr_wanted(self, partition: Partition) -> None:
        self.on_isr_wanted(partition)

    def _give_up(self, topic: TopicImage, number: int) -> None:
        """Remove a replica that is no longer assigned to this broker."""
        gone = KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Broker {self._broker_id} no longer has a replica of {topic.name}-{number}.",
        )
        self._remove(topic, number, gone)

    async def reconfigure(self) -> None:
        """Apply the broker's current configuration to every log."""
        for count, partition in enumerate(self, 1):
            topic = self._image.topics_by_lineage.get(partition.lineage)
            if topic is not None:
                self._configure(partition, topic)
            if count % _OPENED_PER_TURN == 0:
                await asyncio.sleep(0)

    def _configure(self, partition: Partition, topic: TopicImage) -> None:
        try:
            config = self._config.topic_config(topic.configs)
            self._configure_min_insync(partition, topic)
            partition.allows_unclean_election = self._config.topic_bool("unclean.leader.election.enable", topic.configs)
        except ConfigError as error:
            # Every change is checked before it is stored, so another version of tailrace has stored it.
            logger.error("%s keeps its previous configuration: %s", partition.partition, error)
            return
        if config != partition.log.config:
            partition.directory.reconfigure(partition.log, config)
            self._apply_archive(partition)

    def _configure_min_insync(self, partition: Partition, topic: TopicImage) -> None:
        least = self._config.topic_int("min.insync.replicas", topic.configs)
        if partition.is_internal:
            # It has fewer replicas than its key says while there are fewer brokers, and must work all the same.
            least = min(least, len(topic.partitions[partition.partition.partition].replicas))
        partition.min_insync_replicas = least

    def _new_home(self) -> LogDirectory:
        """Return the directory with the fewest logs, for a new log."""
        online = [directory for directory in self.directories if directory.failure is None]
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        if not self._is_started and len(online) < len(self.directories):
            # An empty log here would hide the existing one, and assign its offsets a second time.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log may be in a directory that is offline")
        return min(online, key=lambda directory: directory.log_count)

    async def _close_topics(self, topics: Sequence[TopicImage]) -> None:
        """Remove the partitions of deleted topics, a few in each turn of the loop."""
        removed = 0
        for topic in topics:
            self.traffic.forget(topic.name)
            for number in range(len(topic.partitions)):
                self._remove(topic, number, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted."))
                removed += 1
                if removed % _REMOVED_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _remove(self, topic: TopicImage, number: int, reason: KafkaError) -> None:
        """Stop serving a partition, and remove its log."""
        partition = self._by_lineage.pop((topic.lineage, number), None)
        self._by_id.pop((topic.topic_id, number), None)
        if partition is None:
            unopened = self._unopened.pop((topic.name, number), None)
            if unopened is not None and unopened.home is not None and unopened.home.failure is None:
                unopened.home.remove_partition(TopicPartition(topic.name, number))
            return
        if self._by_name.get((topic.name, number)) is partition:
            del self._by_name[topic.name, number]
        self._fetchers.unfollow(partition)
        partition.close(reason)
        partition.directory.remove_partition(partition.partition)

    def set_strays_aside(self) -> None:
        """Rename directories that belong to no topic: mostly leftovers of a deletion that a crash interrupted."""
        for partition, directory in self._homes.items():
            directory.removals.set_aside(partition)
        self._homes.clear()

    def start(self) -> None:
        """Start the periodic work."""
        self._is_started = True
        for directory in self.directories:
            directory.start()
        self._tasks.spawn(self._every("log.retention.check.interval.ms", self.remove_expired), "retention")
        self._tasks.spawn(self._every("log.flush.offset.checkpoint.interval.ms", self._checkpoint), "checkpoints")
        self._tasks.spawn(
            self._every("replica.high.watermark.checkpoint.interval.ms", self._save_high_watermarks), "high watermarks"
        )
        self._tasks.spawn(self._reopen_now_and_then(), "retry to open partitions")

    def hold_appends(self) -> None:
        """Accept no more records for replicated partitions that this broker leads now or later: it is about to stop."""
        self._is_stopping = True
        for partition in self:
            partition.leading.hold_appends()

    async def close(self) -> None:
        """Sync and close every log."""
        gone = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The broker is stopping.")
        for partition in self:
            partition.close(gone)
        await self._save_high_watermarks()
        for directory in self.directories:
            await directory.close()

    # --- events of directories

    def _promised(self, log: PartitionLog) -> None:
        partition = self._by_name.get(log.partition)
        if partition is not None:
            partition.advance()
            self._fetchers.promised(partition)

    def _failed(self, directory: LogDirectory) -> None:
        for partition in self:
            if partition.directory is directory:
                self._fetchers.unfollow(partition)
                partition.close(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(directory.failure)))
        self.on_directory_failed(directory)

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
        """Retry to open partitions in working directories: a full disk may have room now."""
        all_online = all(directory.failure is None for directory in self.directories)
        for (name, number), unopened in list(self._unopened.items()):
            topic = self._image.topics_by_lineage.get(unopened.topic.lineage)
            if topic is None or (name, number) not in self._unopened:
                continue
            home = unopened.home
            if home is not None and home.failure is None:
                self._homes[TopicPartition(name, number)] = home
            elif home is not None or not all_online:
                continue  # only a restart can tell whether its log is on the offline disk
            self._open_partition(topic, number)
            if (name, number) not in self._unopened:
                logger.info("opened %s; it is served again", TopicPartition(name, number))
                self.on_reopened(self._by_name[name, number])
            await asyncio.sleep(0)

    async def remove_expired(self) -> None:
        """Apply retention to every log, and remove expired producers."""
        silent_since_ms = self._runtime.clock.wall_ms() - self._config.get_int("producer.id.expiration.ms")
        for partition in self:
            if partition.directory.failure is not None:
                continue
            try:
                directory, log, take_out = partition.directory, partition.log, partial(self._remove_expired, partition)
                while removed := await directory.starts.take_out_expired(log, take_out):
                    directory.removals.remove_later(log, removed)
                    await asyncio.sleep(0)
                    if not directory.holds(log):
                        break
            except (KafkaError, PassingStorageError) as error:
                logger.error("retention of %s failed: %s; retrying", partition.partition, error)
            except StorageError as error:
                partition.directory.fail(error)
            partition.log.producers.expire(silent_since_ms)
            partition.log.bound_producers()
            await asyncio.sleep(0)

    def _remove_expired(self, partition: Partition) -> list[Segment]:
        """Take out the segments that retention has ended and that are archived, if they must be."""
        log = partition.log
        if not log.config.is_archived:
            return log.remove_expired(partition.high_watermark, most=_EXPIRED_PER_TURN)
        # Records that this broker cannot read from the archive stay here, or they would be unreadable.
        archived_end = None if log.config.drops_unarchived else min(partition.archived_end, partition.readable_end)
        start_offset = log.start_offset
        removed = log.remove_expired(
            partition.high_watermark, archived_end, partition.log_start_offset, _EXPIRED_PER_TURN
        )
        dropped = log.start_offset - max(start_offset, partition.archived_end)
        if removed and dropped > 0:
            partition.traffic.dropped_unarchived += dropped
            logger.warning(
                "%s: deleted %d records up to offset %d that were never archived, because of "
                "tailrace.archive.lag.policy=drop",
                partition.partition,
                dropped,
                log.start_offset,
                extra={"topic": partition.partition.topic, "repeats": "unarchived dropped"},
            )
        return removed

    async def _save_high_watermarks(self) -> None:
        """Save high watermarks of replicated partitions; of others, everything durable in the log is committed."""
        for directory in self.directories:
            if directory.failure is not None:
                continue
            offsets = {
                partition.partition: partition.high_watermark
                for partition in self
                if partition.directory is directory and partition.is_replicated
            }
            try:
                await directory.checkpoints.save_high_watermarks(offsets)
            except StorageError as error:
                logger.error("cannot write the high watermarks of %s: %s; retrying", directory.path, error)

    async def _checkpoint(self) -> None:
        for directory in self.directories:
            if directory.failure is None:
                try:
                    await directory.checkpoints.save()
                except StorageError as error:
                    logger.error("cannot write the checkpoints of %s: %s; retrying", directory.path, error)


def _ignore(partition: Partition) -> None:
    """Default callback: do nothing."""


def _ignore_failure(directory: LogDirectory) -> None:
    """Default callback: do nothing."""
