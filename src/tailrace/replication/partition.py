"""One partition on this broker: its role, its leader epoch, its high watermark, and what waits for it.

The image says who leads. A leader appends what producers send, and moves the high watermark as its followers' fetches
show how far they are; what a follower does is in `following`. Readers (`reading`) never see beyond the high watermark,
which never goes back within a leader epoch. An acknowledgement waits until the high watermark (acks=all), enough
in-sync replicas (acks=2 and more) or the local promise (acks=1) has passed its records. Batches that have to be
prepared first wait in `append_queue`. What is in the archive counts as part of the log, also where the files here begin
later (`archive_start`). State changes without suspension: only preparation and a cut of the log await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from tailrace.cluster.archives import ArchivedRange
from tailrace.cluster.image import NO_LEADER, PartitionState
from tailrace.cluster.metadata import IsrChange
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from tailrace.records.batch import BatchHeader, check_produced, read_header
from tailrace.replication.append_queue import AppendQueue
from tailrace.replication.archive_start import ArchiveStart
from tailrace.replication.following import Following
from tailrace.replication.isr import UNBOUNDED, Followers
from tailrace.replication.reading import PartitionReader
from tailrace.replication.traffic import TopicTraffic
from tailrace.replication.waiters import DataWaiter, OffsetWaiters, refuse
from tailrace.runtime.disk import PassingStorageError
from tailrace.runtime.long_work import LongWork
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import Appended, PartitionLog

logger = logging.getLogger("tailrace.replication")

ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0
#: What is waited for: beside the numbers of acks, that records are committed, however few replicas are in sync.
_COMMITTED = -2
#: More than any reader waits for.
_EVERYTHING = 1 << 62


class Partition:
    """One replica of a partition: the leader, a follower, or neither while nobody leads."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        directory: LogDirectory,
        broker_id: int,
        *,
        holds_lease: Callable[[], bool] | None = None,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.directory = directory
        #: Shared by all partitions of a broker, once they have been told so: whether its lease is over unnoticed.
        self.is_unsettled: Callable[[], bool] = lambda: False
        #: Whether only brokers write to it.
        self.is_internal = partition.topic in INTERNAL_TOPICS
        self.replicas: tuple[int, ...] = ()
        #: The replicas in sync as the store has them, for all this broker knows.
        self.isr: tuple[int, ...] = ()
        self.isr_count = 0
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.is_leader = False
        self.min_insync_replicas = 1
        #: Whether a replica that is not in sync may be elected, so that nobody in sync can be sure to be the last.
        self.allows_unclean_election = False
        #: What of it may be read from the archive, below and beside what is here; None where that is nothing.
        self.archived: ArchivedRange | None = None
        #: Below which offset nothing is left to archive.
        self.archived_end = 0
        #: Below which offset this broker has seen itself that the archive can be read from here.
        self.readable_end = 0
        #: Told by a leader when a follower could join the ISR: `wanted_isr` says how.
        self.on_isr_wanted: Callable[[Partition], None] = _ignore
        #: Shared by all partitions of a broker, once they have been told so.
        self.long_work = LongWork()
        #: Shared by the partitions of a topic, once they have been told so.
        self.traffic = TopicTraffic()
        self.reader = PartitionReader(self)
        # Readers see nothing before the image has said who leads.
        self.high_watermark = min(
            max(directory.checkpoints.high_watermark_of(partition), log.start_offset), log.end_offset
        )
        #: Whether the log has told that writes are refused, until they are not.
        self._has_said_too_few = False
        self.broker_id = broker_id
        self._holds_lease = holds_lease
        #: Whether it leads and is the only replica: nobody else can ever lead, and what is promised is committed.
        self._is_sole = False
        #: Whether it is, and nothing keeps it from appending: most partitions of one broker, most of the time.
        self._is_plain = False
        self._followers: Followers | None = None
        self._pending: IsrChange | None = None
        self._readable_bytes = 0
        self._appended_bytes = 0
        self._data_waiters: dict[DataWaiter, None] = {}
        self._append_waiters: dict[DataWaiter, None] = {}
        self._waiters: dict[int, OffsetWaiters] = {}
        self._low_watermark_waiters = OffsetWaiters()
        self._archive_start = ArchiveStart(self)
        #: Why it takes no records while the archive is behind and the disk is almost full.
        self._archive_refusal: KafkaError | None = None
        #: Whether it leads by the image, but another may by now, and clients shall look for that one.
        self.is_cut_off = False
        #: Whether clients may read here: it leads, is there, and nobody else may lead.
        self.serves_clients = False
        #: How many want it to take no records because another replica is about to lead, or may lead already.
        self._holds = 0
        self.queue = AppendQueue(self)
        self.following = Following(self)
        self.gone: KafkaError | None = None
        # Why nothing is appended for producers now: it is gone, led elsewhere, or being cut.
        self.refusal: KafkaError | None = None
        self.settle_role()

    # --- roles

    def apply_state(self, state: PartitionState, broker_epochs: Mapping[int, int], now: float) -> None:
        """Be what the image says: leader, follower, or neither; `broker_epochs` has every broker that is alive."""
        if state.leader_epoch < self.leader_epoch:
            return
        was_leader, was_epoch = self.is_leader, self.leader_epoch
        if state.leader_epoch > was_epoch:
            self._archive_start.is_under_way = False
            self.is_cut_off = False
        # It is beyond where the log was cut below what had been committed, just now.
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self.replicas, self.isr, self.isr_count = state.replicas, state.isr, len(state.isr)
        if self._has_said_too_few and self.isr_count >= self.min_insync_replicas:
            self._has_said_too_few = False
            logger.info("%s takes writes with acks=all again: %d replicas are in sync", self.partition, self.isr_count)
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        self.is_leader = state.leader == self.broker_id
        if self.is_leader:
            self._lead(state, broker_epochs, now, is_new=not was_leader or state.leader_epoch > was_epoch)
        else:
            self._followers = None
            self._pending = None
            self._is_sole = False
            # An epoch in which nothing was appended here is none that this log has.
            self.log.leader_epochs.cut(self.log.end_offset)
        self.settle_role()
        if self.is_leader:
            self.advance()
            self._settle_waiters()
            self._settle_low_watermark()
        elif was_leader:
            self._refuse_waiters(self._not_leader())

    def _lead(self, state: PartitionState, broker_epochs: Mapping[int, int], now: float, *, is_new: bool) -> None:
        others = [replica for replica in state.replicas if replica != self.broker_id]
        self._is_sole = not others
        if is_new or self._followers is None:
            self._followers = Followers(others, state.isr, self.log.end_offset, now)
            self._pending = None
        pending = self._pending
        if pending is not None and sorted(pending.isr) == sorted(state.isr):
            self._pending = None
            self._followers.wait_for_change(())
        self._followers.update(others, state.isr, broker_epochs)
        if is_new and self.log.end_offset < self.archived_end:
            self._archive_start.begin()
        elif others and state.leader_epoch > self.log.leader_epochs.latest and not self._archive_start.is_under_way:
            # Known before anything is appended: followers with records of older epochs are told where those ended.
            self.log.leader_epochs.assign(state.leader_epoch, self.log.end_offset)

    def settle_role(self) -> None:
        """Work out whether producers are refused, and why."""
        self.serves_clients = self.is_leader and self.gone is None and not self.is_cut_off
        if self.gone is not None:
            self.refusal = self.gone
        elif not self.is_leader:
            self.refusal = self._not_leader()
        elif self.is_cut_off:
            self.refusal = self._lease_is_over()
        elif self._holds and not self._is_sole:
            self.refusal = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {self.broker_id} is handing {self.partition} over."
            )
        elif self._archive_start.is_under_way:
            self.refusal = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition} is about to go on where its archive ends."
            )
        elif self.log.is_being_cut:
            self.refusal = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition} is still being cut to what its last leader had."
            )
        else:
            self.refusal = self._archive_refusal
        self._is_plain = self._is_sole and self.refusal is None

    def doubt_leadership(self, silent_since: float) -> bool:
        """The lease is over: send clients elsewhere if no follower fetched since a moment; whether that is new.

        Followers that fetch know of no other leader. An only replica cannot have one.
        """
        followers = self._followers
        if followers is None or self._is_sole or self.is_cut_off or followers.last_fetch >= silent_since:
            return False
        self.is_cut_off = True
        self.settle_role()
        self._refuse_waiters(self._lease_is_over())
        return True

    def trust_leadership(self) -> None:
        """Nobody else leads: serve clients again, if it leads."""
        if self.is_cut_off:
            self.is_cut_off = False
            self.settle_role()

    def _not_leader(self) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {self.broker_id} does not lead {self.partition}.")

    # --- the archive

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, from here or from the archive."""
        start_offset = self.log.start_offset
        return start_offset if self.archived is None else min(start_offset, self.archived.start)

    def is_in_archive(self, offset: int) -> bool:
        """Whether an offset that is not here any more is in the archive."""
        archived = self.archived
        return archived is not None and offset < self.log.start_offset and archived.start <= offset < archived.end

    def apply_archive(self, readable: ArchivedRange | None, archived_end: int) -> None:
        """Know what is archived, as the image says."""
        self.archived, self.archived_end = readable, archived_end
        if self.is_leader:
            self._settle_low_watermark()

    def hold_for_archive(self, reason: KafkaError | None) -> None:
        """Take no records while the archive is behind, for a reason; take them again for none."""
        if (reason is None) != (self._archive_refusal is None):
            self._archive_refusal = reason
            self.settle_role()

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended; there are none yet, so it is the high watermark."""
        return self.high_watermark

    @property
    def is_replicated(self) -> bool:
        """Whether it has other replicas, for all this broker knows."""
        return len(self.replicas) > 1

    @property
    def has_current_high_watermark(self) -> bool:
        """Whether all that was committed before this leader's epoch is known to be: followers' fetches tell."""
        return self._followers is None or self.high_watermark >= self._followers.epoch_start_offset

    @property
    def surely_leads(self) -> bool:
        """Whether this broker leads and nobody else can by now, for all that the store has told."""
        return self.is_leader and (self._holds_lease is None or self._holds_lease())

    @property
    def may_be_deposed(self) -> bool:
        """Whether another may lead by now without this broker having had the time to notice."""
        return not self._is_sole and self.is_unsettled()

    # --- writing

    def append(self, data: memoryview, acks: int) -> Appended | asyncio.Future[Appended]:
        """Check one batch of a producer and append it: now or, where it has to be prepared first, in its turn."""
        try:
            if acks > ACKS_LEADER or not self._is_plain or self.directory.failure is not None:
                self.require_writable(acks)
            elif acks == ACKS_ALL and self.isr_count < self.min_insync_replicas:
                raise self._too_few_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)
        except KafkaError:
            self._refused(data)
            raise
        header = check_produced(data)
        if self.log.config.looks_into_batches or self.queue:
            return self.queue.append(data, header)
        try:
            return self.append_now(data, header)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_TIMESTAMP:
                raise
            # Only its records tell which of them are too new.
            return self.queue.append(data, header)

    def _refused(self, data: memoryview) -> None:
        """Hold what a producer sent right behind this batch to its order, also where nothing is known of it yet."""
        try:
            header = check_produced(data)
        except KafkaError:
            return  # not sent again
        self.log.producers.refused(header)

    def append_own(self, data: memoryview, acks: int) -> Appended:
        """Append a batch that this broker made itself, in which nothing has to be looked for or changed."""
        self.require_writable(acks)
        return self.append_now(data, read_header(data))

    def require_writable(self, acks: int) -> None:
        """Refuse records that cannot be acknowledged as asked for."""
        if self.refusal is not None:
            raise _again(self.refusal)
        if self.directory.failure is not None:
            self.directory.require_online()
        if acks == ACKS_ALL:
            if self.isr_count < self.min_insync_replicas:
                raise self._too_few_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif acks > ACKS_LEADER:
            self._require_count(acks)
        if not self._is_sole and not self._may_acknowledge(acks):
            raise self._lease_is_over()

    def _require_count(self, acks: int) -> None:
        if acks > len(self.replicas):
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks={acks} asks for more replicas than the {len(self.replicas)} of {self.partition}",
            )
        if acks > self.isr_count:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"acks={acks} asks for more replicas of {self.partition} than are in sync: {self.isr_count}",
            )

    def _may_acknowledge(self, acks: int) -> bool:
        """Whether nobody else can lead by now in whose log the records are not, and would not be missed."""
        if self._holds_lease is None or self._holds_lease():
            return True
        if acks in (ACKS_NONE, ACKS_LEADER):
            return False
        # Others in the ISR have to confirm. Where there are none, only an unclean election can make another leader.
        return self.isr_count > 1 or not self.allows_unclean_election

    def _lease_is_over(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Broker {self.broker_id} has not reached the coordination store for so long that another may lead "
            f"{self.partition} by now.",
        )

    def _too_few_replicas(self, code: ErrorCode) -> KafkaError:
        if not self._has_said_too_few:
            self._has_said_too_few = True
            logger.warning(
                "%s refuses writes with acks=all: %d of %d replicas are in sync (%s), and min.insync.replicas is %d; "
                "not in sync: broker %s. Start those brokers, or lower min.insync.replicas",
                self.partition,
                self.isr_count,
                len(self.replicas),
                ", ".join(map(str, self.isr)),
                self.min_insync_replicas,
                ", ".join(str(replica) for replica in self.replicas if replica not in self.isr) or "none",
                extra={"topic": self.partition.topic, "repeats": "too few replicas"},
            )
        return KafkaError(
            code,
            f"The size of the current ISR : {self.isr_count} is insufficient to satisfy the min.isr requirement of "
            f"{self.min_insync_replicas} for partition {self.partition}, live replica(s) broker.id are : "
            f"{', '.join(map(str, self.isr))}",
        )

    def append_now(self, data: memoryview | bytearray, header: BatchHeader) -> Appended:
        """Append a batch in which nothing is left to be prepared."""
        try:
            appended = self.log.append(data, header, self.leader_epoch)
        except PassingStorageError as error:
            self.log.producers.refused(header)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.with_advice) from error
        except StorageError as error:
            self.directory.fail(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if not appended.is_duplicate:
            size = len(data)
            self._appended_bytes += size
            traffic = self.traffic
            traffic.bytes_in += size
            traffic.records_in += header.record_count
            if self._is_sole and not self._data_waiters and not self._waiters:
                # What `advance` would do, at the cost of a few nanoseconds.
                promised = self.log.promised_offset
                if promised > self.high_watermark:
                    self.high_watermark = promised
                    self._readable_bytes = self._appended_bytes
            else:
                self.advance()
            if self._append_waiters:
                for waiter in list(self._append_waiters):
                    waiter.more_to_read(size)
        return appended

    def advance(self) -> None:
        """Move the high watermark to what the log promises and the replicas have, and tell those who wait."""
        limit = self.log.promised_offset
        if not self._is_sole:
            if self._followers is None:
                return
            limit = min(limit, self._followers.committed_limit)
        if limit > self.high_watermark:
            self.high_watermark = limit
            size = self._appended_bytes - self._readable_bytes
            self._readable_bytes = self._appended_bytes
            if self._data_waiters:
                for waiter in list(self._data_waiters):
                    waiter.more_to_read(size)
        if self._waiters:
            self._settle_waiters()

    # --- acknowledging

    def is_acknowledged(self, last_offset: int, acks: int = ACKS_ALL) -> bool:
        """Whether records up to an offset may be acknowledged to whoever asked for it in this way."""
        if self._is_sole:
            return last_offset < self.high_watermark
        limit, refusal = self._passed(acks)
        return refusal is None and last_offset < limit

    def wait_for(self, last_offset: int, acks: int = ACKS_ALL) -> asyncio.Future[None]:
        """A future that ends when records up to an offset may be acknowledged, or never can be."""
        if not self.serves_clients:
            return _refused(self.refusal or self._not_leader())
        limit, refusal = self._passed(acks)
        if last_offset >= limit:
            waiters = self._waiters.get(acks)
            if waiters is None:
                waiters = self._waiters[acks] = OffsetWaiters()
            return waiters.add(last_offset)
        if refusal is not None:
            return _refused(refusal)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def wait_until_committed(self, last_offset: int) -> asyncio.Future[None]:
        """A future that ends when records up to an offset are committed, however few replicas are in sync."""
        return self.wait_for(last_offset, _COMMITTED)

    def _passed(self, acks: int) -> tuple[int, KafkaError | None]:
        """Below which offset records are what was asked for, and why they are not acknowledged nevertheless."""
        if acks == _COMMITTED:
            return self.high_watermark, None
        refusal = None
        if not self._is_sole and not self._may_acknowledge(acks):
            refusal = self._lease_is_over()
        if acks == ACKS_ALL:
            if refusal is None and self.isr_count < self.min_insync_replicas:
                refusal = self._too_few_replicas(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            return self.high_watermark, refusal
        promised = self.log.promised_offset
        if acks <= ACKS_LEADER or self._followers is None:
            return promised, refusal
        if acks > self.isr_count:
            # Nobody knows whether there will be so many again.
            return UNBOUNDED, self._too_few_for(acks)
        return self._followers.limit_of(acks, promised), refusal

    def _too_few_for(self, acks: int) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"acks={acks} asks for more replicas of {self.partition} than are in sync: {self.isr_count}",
        )

    def _settle_waiters(self) -> None:
        for acks, waiters in list(self._waiters.items()):
            waiters.passed(*self._passed(acks))
            if not waiters:
                del self._waiters[acks]

    def _refuse_waiters(self, reason: KafkaError) -> None:
        """Nothing more will be acknowledged, and there is nothing more to read."""
        for waiters in [*self._waiters.values(), self._low_watermark_waiters]:
            waiters.refuse_all(reason)
        self._waiters.clear()
        for waiter in [*self._data_waiters, *self._append_waiters]:
            waiter.more_to_read(_EVERYTHING)

    # --- what a leader knows of its followers

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int, now: float
    ) -> None:
        """A follower whose log is part of this one asked for records from an offset on, and so has all below it.

        Only for fetches for which `diverging_epoch` found nothing: any other log has something else below that offset.
        """
        followers = self._followers
        if followers is None:
            raise self._not_leader()
        if replica_id not in self.replicas or replica_id == self.broker_id:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {replica_id} is not one of the replicas of {self.partition}."
            )
        end_offset = self.log.end_offset
        if not 0 <= fetch_offset <= end_offset:
            return
        former_start = followers[replica_id].log_start_offset
        may_join = followers.fetched(
            replica_id, broker_epoch, fetch_offset, log_start_offset, end_offset, self.high_watermark, now
        )
        self.trust_leadership()
        if self._waiters or followers.committed_limit > self.high_watermark:
            self.advance()
        if log_start_offset != former_start:
            self._settle_low_watermark()
        if may_join:
            self.on_isr_wanted(self)

    def wanted_isr(self, now: float, lag_ms: int) -> IsrChange | None:
        """What the leader wants the ISR to be; None where it is right or a change is on its way.

        From now on the change counts as perhaps made. Whoever asks has it made by `ClusterMetadata.alter_isr`, again
        and again while the store is unavailable, and then tells by `isr_change_ended`.
        """
        if self._followers is None or self._is_sole or self._pending is not None:
            return None
        wanted = self._followers.wanted(self.broker_id, self.log.end_offset, self.high_watermark, now, lag_ms)
        # Those that did not come to join are waited for no longer.
        self.advance()
        if wanted is None:
            return None
        isr, added = wanted
        self._pending = IsrChange(self.topic_id, self.partition.partition, self.leader_epoch, isr, added)
        self._followers.wait_for_change(isr)
        return self._pending

    def isr_change_ended(self, change: IsrChange) -> None:
        """The store has made a change or refused it, and the image shows which: only what it shows counts."""
        if self._pending is change and self._followers is not None:
            self._pending = None
            self._followers.wait_for_change(())
            self.advance()

    # --- handing leadership over

    def hold_appends(self) -> None:
        """Take no more records from producers, so that a follower can have everything, unless nobody follows."""
        self._holds += 1
        self.settle_role()

    def release_appends(self) -> None:
        """Take records again, if it still leads and nobody else holds it."""
        self._holds -= 1
        self.settle_role()

    def furthest_follower(self, live: Collection[int]) -> int | None:
        """The follower in sync that has most of those that are alive; None where there is none."""
        followers = self._followers
        if followers is None:
            return None
        in_sync = [each for each in self.replicas if each in live and each in self.isr and each != self.broker_id]
        return max(in_sync, key=lambda each: followers[each].log_end_offset, default=None)

    def has_everything(self, replica_id: int) -> bool:
        """Whether a follower has all that this leader has; nothing is left to wait for where it leads no more."""
        if self._followers is None:
            return not self.is_leader
        return replica_id in self.isr and self._followers[replica_id].log_end_offset >= self.log.end_offset

    @property
    def low_watermark(self) -> int:
        """The lowest log start of all replicas that are alive or in sync; -1 while one has not told."""
        start_offset = self.log_start_offset
        return start_offset if self._followers is None else self._followers.low_watermark(start_offset)

    def wait_for_low_watermark(self, offset: int) -> asyncio.Future[None]:
        """A future that ends when every replica alive or in sync has given up its records below an offset."""
        if self.gone is not None or not self.is_leader:
            return _refused(self.gone or self._not_leader())
        future = self._low_watermark_waiters.add(offset)
        self._settle_low_watermark()
        return future

    def _settle_low_watermark(self) -> None:
        if self._low_watermark_waiters:
            self._low_watermark_waiters.passed(self.low_watermark + 1)

    # --- reading

    def require_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH, *, by_replica: bool = False) -> None:
        """Refuse whoever takes this broker for the leader where it is not, or not in the epoch they know.

        Clients are refused also where another may lead by now. Replicas know best themselves whom they follow.
        """
        self.require_served()
        self.require_epoch(current_leader_epoch)
        if not self.is_leader:
            raise self._not_leader()
        if self.is_cut_off and not by_replica:
            raise self._lease_is_over()

    def require_whole(self, current_leader_epoch: int) -> None:
        """Refuse to say how far the log is in another epoch than the one asked for, or while it is being cut."""
        self.require_served()
        self.require_epoch(current_leader_epoch)
        if self.log.is_being_cut:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{self.partition} is being cut.")

    def require_epoch(self, claimed: int) -> None:
        """Refuse clients whose idea of the leader's epoch is not ours (KIP-320)."""
        if claimed in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if claimed < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a reader's log and this one part, if the reader's last epoch or offset is not in this one."""
        if last_fetched_epoch == NO_LEADER_EPOCH:
            return None
        epoch, end_offset = self.log.leader_epochs.end_offset_for(last_fetched_epoch, self.log.end_offset)
        if end_offset == NO_OFFSET:
            # With nothing to truncate to the reader would ask the same again for ever.
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.partition} has no epoch {last_fetched_epoch}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def watch(self, waiter: DataWaiter) -> None:
        """Tell somebody when more is committed."""
        self._data_waiters[waiter] = None

    def watch_appends(self, waiter: DataWaiter) -> None:
        """Tell somebody when more is appended, committed or not."""
        self._append_waiters[waiter] = None

    def unwatch(self, waiter: DataWaiter) -> None:
        self._data_waiters.pop(waiter, None)
        self._append_waiters.pop(waiter, None)

    # --- its end

    def require_served(self) -> None:
        """Refuse if the partition was deleted or its disk failed."""
        if self.gone is not None:
            raise _again(self.gone)
        if self.directory.failure is not None:
            self.directory.require_online()

    def close(self, reason: KafkaError) -> None:
        """Nothing more is served: everybody who waits is told why."""
        self.gone = reason
        self.settle_role()
        self.queue.close(reason)
        self._refuse_waiters(reason)


def _again(reason: KafkaError) -> KafkaError:
    """A refusal that may have been raised before, without the stack of that, which would grow for ever."""
    return reason.with_traceback(None)


def _refused(reason: KafkaError) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refuse(future, reason)
    return future


def _ignore(partition: Partition) -> None:
    """Nobody listens yet."""
