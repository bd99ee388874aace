"""One partition on this broker: its role, its leader epoch, its high watermark, and the requests that wait for it.

The image decides who leads. `leading` has what a leader does for its followers, `following` what a follower does, and
`acknowledging` what producers may be told. This module has what they share, and the paths of every append and read.
Readers (`reading`) never see beyond the high watermark, which never moves back within a leader epoch. Batches that need
preparation wait in `append_queue`. Archived records count as part of the log, even where the local files start later
(`archive_start`). State changes without suspension: only preparation and truncation await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from tailrace.cluster.archives import ArchivedRange
from tailrace.cluster.image import NO_LEADER, PartitionState
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_OFFSET, Lineage, TopicPartition
from tailrace.records.batch import BatchHeader, check_produced, read_header
from tailrace.records.markers import Marker
from tailrace.replication.acknowledging import ACKS_ALL, ACKS_LEADER, Acknowledging
from tailrace.replication.append_queue import AppendQueue
from tailrace.replication.archive_start import ArchiveStart
from tailrace.replication.following import Following
from tailrace.replication.leading import Leading
from tailrace.replication.reading import PartitionReader
from tailrace.replication.traffic import TopicTraffic
from tailrace.replication.waiters import DataWaiter, again
from tailrace.runtime.disk import PassingStorageError
from tailrace.runtime.long_work import LongWork
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import Appended, PartitionLog

logger = logging.getLogger("tailrace.replication")

#: More bytes than any reader waits for.
_EVERYTHING = 1 << 62


class Partition:
    """One replica of a partition: leader, follower, or neither while there is no leader."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: Lineage,
        log: PartitionLog,
        directory: LogDirectory,
        broker_id: int,
        *,
        holds_lease: Callable[[], bool] | None = None,
    ) -> None:
        self.partition = partition
        self.lineage = topic_id
        self.log = log
        self.directory = directory
        #: Whether the lease may have expired unnoticed; shared by all partitions of a broker once it is set.
        self.is_unsettled: Callable[[], bool] = lambda: False
        #: Whether only brokers write to this partition.
        self.is_internal = partition.topic in INTERNAL_TOPICS
        self.replicas: tuple[int, ...] = ()
        #: The ISR in the store, as far as this broker knows.
        self.isr: tuple[int, ...] = ()
        self.isr_count = 0
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.is_leader = False
        self.min_insync_replicas = 1
        #: Whether a replica outside the ISR may be elected; then an in-sync replica cannot be sure to be the last.
        self.allows_unclean_election = False
        #: The range that can be read from the archive in addition to the local log; None if there is none.
        self.archived: ArchivedRange | None = None
        #: Nothing below this offset is left to archive.
        self.archived_end = 0
        #: This broker has itself verified that it can read the archive below this offset.
        self.readable_end = 0
        #: Called on a leader when a follower could join the ISR; `leading.wanted_isr` has the details.
        self.on_isr_wanted: Callable[[Partition], None] = _ignore
        #: Shared by all partitions of a broker once it is set.
        self.long_work = LongWork()
        #: Shared by all partitions of a topic once it is set.
        self.traffic = TopicTraffic()
        self.reader = PartitionReader(self)
        # Readers see nothing before the image says who leads.
        self.high_watermark = min(
            max(directory.checkpoints.high_watermark_of(partition), log.start_offset), log.end_offset
        )
        self.broker_id = broker_id
        self.holds_lease = holds_lease
        #: Whether it leads and is the only replica: no other broker can ever lead, and what is promised is committed.
        self.is_sole = False
        #: Whether it is the sole replica and nothing prevents appends: most partitions of a single broker.
        self._is_plain = False
        self._readable_bytes = 0
        self._appended_bytes = 0
        self._data_waiters: dict[DataWaiter, None] = {}
        self._append_waiters: dict[DataWaiter, None] = {}
        # Readers of stable records; the last stable offset when they were notified, and whether it was below the high
        # watermark.
        self._stable_waiters: dict[DataWaiter, None] = {}
        self._stable_offset = 0
        self._is_held_back = False
        self.archive_start = ArchiveStart(self)
        #: The error for producers while the archive is behind and the disk is almost full.
        self._archive_refusal: KafkaError | None = None
        #: Whether it leads in the image, but another broker may have taken over, so that clients should look for that
        #: one.
        self.is_cut_off = False
        #: Whether clients may read here: this broker leads, has the partition, and no other broker may lead.
        self.serves_clients = False
        self.queue = AppendQueue(self)
        self.following = Following(self)
        self.leading = Leading(self)
        self.acknowledging = Acknowledging(self)
        # Read on every append.
        self._ack_waiters = self.acknowledging.waiters
        self.gone: KafkaError | None = None
        # Why it refuses producers now: it is gone, another broker leads, or it is being truncated.
        self.refusal: KafkaError | None = None
        self.settle_role()

    # --- roles

    def apply_state(self, state: PartitionState, broker_epochs: Mapping[int, int], now: float) -> None:
        """Take the role in the image: leader, follower, or neither; `broker_epochs` lists every live broker."""
        if state.leader_epoch < self.leader_epoch:
            return
        was_leader, was_epoch = self.is_leader, self.leader_epoch
        if state.leader_epoch > was_epoch:
            self.archive_start.is_under_way = False
            self.is_cut_off = False
        # It is beyond the log end if the log was just truncated below the committed offset.
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self.replicas, self.isr, self.isr_count = state.replicas, state.isr, len(state.isr)
        self.acknowledging.isr_changed()
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        self.is_leader = state.leader == self.broker_id
        if self.is_leader:
            self.leading.lead(state, broker_epochs, now, is_new=not was_leader or state.leader_epoch > was_epoch)
        else:
            self.leading.stop()
            # Drop an epoch in which nothing was appended: this log does not have it.
            self.log.leader_epochs.cut(self.log.end_offset)
        self.settle_role()
        if self.is_leader:
            self.advance()
            self.acknowledging.settle()
            self.leading.settle_low_watermark()
        elif was_leader:
            self.refuse_waiters(self.not_leader())

    def settle_role(self) -> None:
        """Determine whether producers are refused, and why."""
        self.serves_clients = self.is_leader and self.gone is None and not self.is_cut_off
        if self.gone is not None:
            self.refusal = self.gone
        elif not self.is_leader:
            self.refusal = self.not_leader()
        elif self.is_cut_off:
            self.refusal = self.lease_is_over()
        elif self.leading.holds and not self.is_sole:
            self.refusal = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {self.broker_id} is handing over {self.partition}."
            )
        elif self.archive_start.is_under_way:
            self.refusal = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition} is about to continue at the end of its archive."
            )
        elif self.log.is_being_cut:
            self.refusal = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition} is still being truncated to its last leader's log."
            )
        else:
            self.refusal = self._archive_refusal
        self._is_plain = self.is_sole and self.refusal is None

    def not_leader(self) -> KafkaError:
        """The error of a broker that does not lead."""
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {self.broker_id} does not lead {self.partition}.")

    # --- the archive

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, from the local log or from the archive."""
        start_offset = self.log.start_offset
        return start_offset if self.archived is None else min(start_offset, self.archived.start)

    def is_in_archive(self, offset: int) -> bool:
        """Whether an offset below the local log is in the archive."""
        archived = self.archived
        return archived is not None and offset < self.log.start_offset and archived.start <= offset < archived.end

    def apply_archive(self, readable: ArchivedRange | None, archived_end: int) -> None:
        """Take over what is archived from the image."""
        self.archived, self.archived_end = readable, archived_end
        if self.is_leader:
            self.leading.settle_low_watermark()

    def hold_for_archive(self, reason: KafkaError | None) -> None:
        """Refuse records while the archive is behind, with this error; None accepts them again."""
        if (reason is None) != (self._archive_refusal is None):
            self._archive_refusal = reason
            self.settle_role()

    @property
    def last_stable_offset(self) -> int:
        """Every transaction below it has a committed end, or has no records left there."""
        high_watermark = self.high_watermark
        transactions = self.log.producers.transactions
        if transactions.is_idle:
            return high_watermark
        return min(high_watermark, max(transactions.first_unstable(high_watermark), self.log_start_offset))

    @property
    def is_replicated(self) -> bool:
        """Whether it has other replicas, as far as this broker knows."""
        return len(self.replicas) > 1

    @property
    def has_current_high_watermark(self) -> bool:
        """Whether it knows that everything committed before its epoch is committed; followers' fetches tell it."""
        followers = self.leading.followers
        return followers is None or self.high_watermark >= followers.epoch_start_offset

    @property
    def surely_leads(self) -> bool:
        """Whether this broker leads and holds its lease, so that no other broker can lead."""
        return self.is_leader and (self.holds_lease is None or self.holds_lease())

    @property
    def may_be_deposed(self) -> bool:
        """Whether another broker may lead already, without this broker having had time to notice."""
        return not self.is_sole and self.is_unsettled()

    # --- writing

    def append(self, data: memoryview, acks: int) -> Appended | asyncio.Future[Appended]:
        """Check and append one batch of a producer: now, or in turn if it needs preparation."""
        try:
            if acks > ACKS_LEADER or not self._is_plain or self.directory.failure is not None:
                self.acknowledging.require_writable(acks)
            elif acks == ACKS_ALL and self.isr_count < self.min_insync_replicas:
                raise self.acknowledging.too_few_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)
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
            # Only the records show which of them are too new.
            return self.queue.append(data, header)

    def _refused(self, data: memoryview) -> None:
        """Note a refused batch, so that the producer's next batches must still arrive in order, even from a new one."""
        try:
            header = check_produced(data)
        except KafkaError:
            return  # a malformed batch is not sent again
        self.log.producers.refused(header)

    def append_own(self, data: memoryview, acks: int) -> Appended:
        """Append a batch that this broker built itself, which needs neither checks nor preparation."""
        self.acknowledging.require_writable(acks)
        return self.append_now(data, read_header(data))

    def append_marker(self, marker: Marker) -> Appended:
        """Append the marker that ends a producer's transaction here; refuses one that is fenced."""
        self.acknowledging.require_writable(ACKS_ALL)
        batch = self.log.new_marker(marker)
        return self.append_now(batch, read_header(batch))

    def lease_is_over(self) -> KafkaError:
        """The error of a leader that may have been replaced."""
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Broker {self.broker_id} has lost the coordination store; another may lead {self.partition} now.",
        )

    def append_now(self, data: memoryview | bytearray, header: BatchHeader) -> Appended:
        """Append a batch that needs no more preparation."""
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
            if self.is_sole and not self._data_waiters and not self._stable_waiters and not self._ack_waiters:
                # Does what `advance` would do, a little faster.
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
        """Move the high watermark to what the log promises and the replicas have, and notify waiters."""
        limit = self.log.promised_offset
        if not self.is_sole:
            followers = self.leading.followers
            if followers is None:
                return
            limit = min(limit, followers.committed_limit)
        if limit > self.high_watermark:
            self.high_watermark = limit
            size = self._appended_bytes - self._readable_bytes
            self._readable_bytes = self._appended_bytes
            if self._data_waiters:
                for waiter in list(self._data_waiters):
                    waiter.more_to_read(size)
            if self._stable_waiters:
                self._notify_stable(size)
        if self._ack_waiters:
            self.acknowledging.settle()

    def _notify_stable(self, size: int) -> None:
        """Notify readers of stable records, whose limit may have moved less, or more, than the high watermark."""
        before, self._stable_offset = self._stable_offset, self.last_stable_offset
        was_held_back, self._is_held_back = self._is_held_back, self._stable_offset < self.high_watermark
        if self._stable_offset > before:
            for waiter in list(self._stable_waiters):
                # How many bytes of earlier appends became stable is not known here: the reader has to look.
                waiter.more_to_read(_EVERYTHING if was_held_back else size)

    # --- acknowledging

    def is_acknowledged(self, last_offset: int, acks: int = ACKS_ALL) -> bool:
        """Whether records up to an offset may be acknowledged to a producer with these acks."""
        if self.is_sole:
            return last_offset < self.high_watermark
        limit, refusal = self.acknowledging.passed(acks)
        return refusal is None and last_offset < limit

    def refuse_waiters(self, reason: KafkaError) -> None:
        """Fail everything that waits: nothing more will be acknowledged, and there is nothing more to read."""
        self.acknowledging.refuse_all(reason)
        self.leading.refuse_all(reason)
        for waiter in [*self._data_waiters, *self._stable_waiters, *self._append_waiters]:
            waiter.more_to_read(_EVERYTHING)

    # --- reading

    def require_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH, *, by_replica: bool = False) -> None:
        """Refuse a request if this broker is not the leader, or not in the epoch that the request names.

        Clients are also refused while another broker may lead. Replicas are not: they know whom they follow.
        """
        self.require_served()
        self.require_epoch(current_leader_epoch)
        if not self.is_leader:
            raise self.not_leader()
        if self.is_cut_off and not by_replica:
            raise self.lease_is_over()

    def require_whole(self, current_leader_epoch: int) -> None:
        """Refuse to report the log end in another epoch than the requested one, or during a truncation."""
        self.require_served()
        self.require_epoch(current_leader_epoch)
        if self.log.is_being_cut:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{self.partition} is being truncated; retry.")

    def require_epoch(self, claimed: int) -> None:
        """Refuse a request that names another leader epoch than the current one (KIP-320)."""
        if claimed in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if claimed < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a reader's log diverges from this one: an epoch and its end here; None if it does not."""
        if last_fetched_epoch == NO_LEADER_EPOCH:
            return None
        epoch, end_offset = self.log.leader_epochs.end_offset_for(last_fetched_epoch, self.log.end_offset)
        if end_offset == NO_OFFSET:
            # With nothing to truncate, the reader would send the same request for ever.
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.partition} has no epoch {last_fetched_epoch}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def watch(self, waiter: DataWaiter) -> None:
        """Notify a waiter when more is committed."""
        self._data_waiters[waiter] = None

    def watch_stable(self, waiter: DataWaiter) -> None:
        """Notify a waiter when the last stable offset moves."""
        if not self._stable_waiters:
            self._stable_offset = self.last_stable_offset
            self._is_held_back = self._stable_offset < self.high_watermark
        self._stable_waiters[waiter] = None

    def watch_appends(self, waiter: DataWaiter) -> None:
        """Notify a waiter when more is appended, committed or not."""
        self._append_waiters[waiter] = None

    def unwatch(self, waiter: DataWaiter) -> None:
        self._data_waiters.pop(waiter, None)
        self._stable_waiters.pop(waiter, None)
        self._append_waiters.pop(waiter, None)

    # --- its end

    def require_served(self) -> None:
        """Refuse if the partition was deleted or its disk has failed."""
        if self.gone is not None:
            raise again(self.gone)
        if self.directory.failure is not None:
            self.directory.require_online()

    def close(self, reason: KafkaError) -> None:
        """Serve nothing more, and fail everything that waits with `reason`."""
        self.gone = reason
        self.settle_role()
        self.queue.close(reason)
        self.refuse_waiters(reason)


def _ignore(partition: Partition) -> None:
    """Do nothing: no listener is set yet."""
