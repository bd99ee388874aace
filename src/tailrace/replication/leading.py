"""A replica that leads: what it knows of its followers, and what it does for them.

Followers' fetches show how far they have got. They move the high watermark and decide who belongs in the ISR. A leader
that hands over stops accepting records until its successor has everything. Invariants: a follower counts towards what
is committed as long as the store may have it in the ISR; a leader that has lost its lease and hears nothing from its
followers redirects clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tailrace.cluster.image import PartitionState
from tailrace.cluster.metadata import IsrChange
from tailrace.errors import ErrorCode, KafkaError
from tailrace.replication.isr import Followers
from tailrace.replication.waiters import OffsetWaiters, refused

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition


class Leading:
    """One partition while this broker leads it."""

    __slots__ = ("_low_watermark_waiters", "_partition", "_pending", "followers", "holds")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        #: None while another broker leads.
        self.followers: Followers | None = None
        #: How many holders want it to accept no records because another replica is about to lead, or already may.
        self.holds = 0
        #: The ISR change in flight to the store.
        self._pending: IsrChange | None = None
        self._low_watermark_waiters = OffsetWaiters()

    def lead(self, state: PartitionState, broker_epochs: Mapping[int, int], now: float, *, is_new: bool) -> None:
        """Lead as the image says; a new leader does not know yet how far its followers have got."""
        partition = self._partition
        others = [replica for replica in state.replicas if replica != partition.broker_id]
        partition.is_sole = not others
        if is_new or self.followers is None:
            self.followers = Followers(others, state.isr, partition.log.end_offset, now)
            self._pending = None
        pending = self._pending
        if pending is not None and sorted(pending.isr) == sorted(state.isr):
            self._pending = None
            self.followers.wait_for_change(())
        self.followers.update(others, state.isr, broker_epochs)
        log, archive_start = partition.log, partition.archive_start
        if is_new and log.end_offset < partition.archived_end:
            archive_start.begin()
        elif others and state.leader_epoch > log.leader_epochs.latest and not archive_start.is_under_way:
            # Assigned before the first append, so that followers with records of older epochs learn where those ended.
            log.leader_epochs.assign(state.leader_epoch, log.end_offset)

    def stop(self) -> None:
        """Another broker leads."""
        self.followers = None
        self._pending = None
        self._partition.is_sole = False

    def refuse_all(self, reason: KafkaError) -> None:
        """Fail requests that wait for replicas to delete records: this broker no longer learns about it."""
        self._low_watermark_waiters.refuse_all(reason)

    # --- the lease

    def doubt(self, silent_since: float) -> bool:
        """The lease has expired: redirect clients if no follower has fetched since `silent_since`; True if that is new.

        A follower that fetches knows of no other leader. A sole replica cannot have one.
        """
        partition = self._partition
        followers = self.followers
        if followers is None or partition.is_sole or partition.is_cut_off or followers.last_fetch >= silent_since:
            return False
        partition.is_cut_off = True
        partition.settle_role()
        partition.refuse_waiters(partition.lease_is_over())
        return True

    def trust(self) -> None:
        """No other broker leads: serve clients again, if this one leads."""
        partition = self._partition
        if partition.is_cut_off:
            partition.is_cut_off = False
            partition.settle_role()

    # --- followers

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int, now: float
    ) -> None:
        """Record a follower's fetch from an offset, below which it has everything.

        Call this only if `diverging_epoch` found no divergence: otherwise the follower's log differs below that offset.
        """
        partition = self._partition
        followers = self.followers
        if followers is None:
            raise partition.not_leader()
        if replica_id not in partition.replicas or replica_id == partition.broker_id:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker {replica_id} is not a replica of {partition.partition}.",
            )
        end_offset = partition.log.end_offset
        if not 0 <= fetch_offset <= end_offset:
            return
        former_start = followers[replica_id].log_start_offset
        may_join = followers.fetched(
            replica_id,
            broker_epoch,
            fetch_offset,
            log_start_offset,
            partition.log_start_offset,
            end_offset,
            partition.high_watermark,
            now,
        )
        if partition.is_cut_off:
            self.trust()
        if partition.acknowledging.waiters or followers.committed_limit > partition.high_watermark:
            partition.advance()
        if log_start_offset != former_start:
            self.settle_low_watermark()
        if may_join:
            partition.on_isr_wanted(partition)

    def wanted_isr(self, now: float, lag_ms: int) -> IsrChange | None:
        """The ISR that the leader wants; None if the current one is right or a change is in flight.

        From now on the change counts as possibly made. The caller makes it with `ClusterMetadata.alter_isr`, retries
        while the store is unavailable, and then calls `isr_change_ended`.
        """
        partition = self._partition
        if self.followers is None or partition.is_sole or self._pending is not None:
            return None
        wanted = self.followers.wanted(
            partition.broker_id,
            partition.log_start_offset,
            partition.log.end_offset,
            partition.high_watermark,
            now,
            lag_ms,
        )
        change = None
        if wanted is not None:
            isr, added = wanted
            change = IsrChange(partition.lineage, partition.partition.partition, partition.leader_epoch, isr, added)
            self._pending = change
            self.followers.wait_for_change(isr)
        # No longer wait for followers that were to join and fell silent. The change has to count before this: a
        # follower that it adds has the records below the high watermark of now, and perhaps not those beyond.
        partition.advance()
        return change

    def isr_change_ended(self, change: IsrChange) -> None:
        """The store has accepted or refused a change, and the image shows the result, which alone counts."""
        if self._pending is change and self.followers is not None:
            self._pending = None
            self.followers.wait_for_change(())
            self._partition.advance()

    # --- handing leadership over

    def hold_appends(self) -> None:
        """Accept no records from producers, so that a follower can catch up, unless this is the sole replica."""
        self.holds += 1
        self._partition.settle_role()

    def release_appends(self) -> None:
        """Release one hold; accepts records again if this broker still leads and there is no other hold."""
        self.holds -= 1
        self._partition.settle_role()

    def furthest_follower(self, live: Collection[int]) -> int | None:
        """The live in-sync follower with the most records, or None."""
        partition = self._partition
        followers = self.followers
        if followers is None:
            return None
        in_sync = [
            each
            for each in partition.replicas
            if each in live and each in partition.isr and each != partition.broker_id
        ]
        return max(in_sync, key=lambda each: followers[each].log_end_offset, default=None)

    def has_everything(self, replica_id: int) -> bool:
        """Whether a follower has the leader's whole log; also True if this broker no longer leads."""
        partition = self._partition
        if self.followers is None:
            return not partition.is_leader
        return replica_id in partition.isr and self.followers[replica_id].log_end_offset >= partition.log.end_offset

    # --- deleting records

    @property
    def low_watermark(self) -> int:
        """The lowest log start of all replicas that are alive or in sync; -1 while one has not reported."""
        start_offset = self._partition.log_start_offset
        return start_offset if self.followers is None else self.followers.low_watermark(start_offset)

    def wait_for_low_watermark(self, offset: int) -> asyncio.Future[None]:
        """A future that completes when every replica alive or in sync has deleted its records below an offset."""
        partition = self._partition
        if partition.gone is not None or not partition.is_leader:
            return refused(partition.gone or partition.not_leader())
        future = self._low_watermark_waiters.add(offset)
        self.settle_low_watermark()
        return future

    def settle_low_watermark(self) -> None:
        """Complete the waiters for deletions that all replicas have made."""
        if self._low_watermark_waiters:
            self._low_watermark_waiters.passed(self.low_watermark + 1)
