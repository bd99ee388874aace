"""What a leader may acknowledge: whether it accepts records with the requested acks, and when those are safe.

An acknowledgement waits until its records are below the high watermark (acks=all), on enough in-sync replicas (acks=2
or more), or below the promised offset of the local log (acks=1). Invariant: the leader acknowledges nothing that a new
leader could be missing. How far each follower has got is the business of `isr`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tailrace.errors import ErrorCode, KafkaError
from tailrace.replication.isr import UNBOUNDED
from tailrace.replication.waiters import OffsetWaiters, again, refused

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition

logger = logging.getLogger("tailrace.replication")

ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0
#: What a waiter waits for, besides the values of acks: that its records are committed, however few replicas are in
#: sync.
_COMMITTED = -2


class Acknowledging:
    """Pending acknowledgements of one partition."""

    __slots__ = ("_has_said_too_few", "_partition", "waiters")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        #: Waiters by acks. The object is never replaced, so that an append sees at once that it is empty.
        self.waiters: dict[int, OffsetWaiters] = {}
        #: Whether the refusal of writes has been logged; reset once writes are accepted again.
        self._has_said_too_few = False

    def isr_changed(self) -> None:
        """Log that writes are accepted again, if they were refused and enough replicas are now in sync."""
        partition = self._partition
        if self._has_said_too_few and partition.isr_count >= partition.min_insync_replicas:
            self._has_said_too_few = False
            logger.info(
                "%s accepts writes with acks=all again: %d replicas are in sync",
                partition.partition,
                partition.isr_count,
            )

    def require_writable(self, acks: int) -> None:
        """Refuse records that cannot be acknowledged as requested."""
        partition = self._partition
        if partition.refusal is not None:
            raise again(partition.refusal)
        if partition.directory.failure is not None:
            partition.directory.require_online()
        if acks == ACKS_ALL:
            if partition.isr_count < partition.min_insync_replicas:
                raise self.too_few_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif acks > ACKS_LEADER:
            self._require_count(acks)
        if not partition.is_sole and not self.may_acknowledge(acks):
            raise partition.lease_is_over()

    def _require_count(self, acks: int) -> None:
        partition = self._partition
        if acks > len(partition.replicas):
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks={acks} is more than the {len(partition.replicas)} replicas of {partition.partition}",
            )
        if acks > partition.isr_count:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"acks={acks} is more than the {partition.isr_count} in-sync replicas of {partition.partition}",
            )

    def may_acknowledge(self, acks: int) -> bool:
        """True if no new leader could be missing these records."""
        partition = self._partition
        if partition.holds_lease is None or partition.holds_lease():
            return True
        if acks in (ACKS_NONE, ACKS_LEADER):
            return False
        # The other members of the ISR confirm. Without any, only an unclean election can make another leader.
        return partition.isr_count > 1 or not partition.allows_unclean_election

    def too_few_replicas(self, code: ErrorCode) -> KafkaError:
        """The error for too few in-sync replicas, with Kafka's message; logged once until enough are in sync."""
        partition = self._partition
        if not self._has_said_too_few:
            self._has_said_too_few = True
            logger.warning(
                "%s refuses writes with acks=all: %d of %d replicas are in sync (%s), and min.insync.replicas is %d; "
                "not in sync: broker %s. Start those brokers, or lower min.insync.replicas",
                partition.partition,
                partition.isr_count,
                len(partition.replicas),
                ", ".join(map(str, partition.isr)),
                partition.min_insync_replicas,
                ", ".join(str(replica) for replica in partition.replicas if replica not in partition.isr) or "none",
                extra={"topic": partition.partition.topic, "repeats": "too few replicas"},
            )
        return KafkaError(
            code,
            f"The size of the current ISR : {partition.isr_count} is insufficient to satisfy the min.isr requirement "
            f"of {partition.min_insync_replicas} for partition {partition.partition}, live replica(s) broker.id are : "
            f"{', '.join(map(str, partition.isr))}",
        )

    def wait_for(self, last_offset: int, acks: int = ACKS_ALL) -> asyncio.Future[None]:
        """A future that completes when records up to an offset may be acknowledged, or fails if they never can be."""
        partition = self._partition
        if not partition.serves_clients:
            return refused(partition.refusal or partition.not_leader())
        limit, refusal = self.passed(acks)
        if last_offset >= limit:
            waiters = self.waiters.get(acks)
            if waiters is None:
                waiters = self.waiters[acks] = OffsetWaiters()
            return waiters.add(last_offset)
        if refusal is not None:
            return refused(refusal)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def wait_until_committed(self, last_offset: int) -> asyncio.Future[None]:
        """A future that completes when records up to an offset are committed, however few replicas are in sync."""
        return self.wait_for(last_offset, _COMMITTED)

    def passed(self, acks: int) -> tuple[int, KafkaError | None]:
        """The offset below which records satisfy `acks`, and the error that prevents their acknowledgement, if any."""
        partition = self._partition
        if acks == _COMMITTED:
            return partition.high_watermark, None
        refusal = None
        if not partition.is_sole and not self.may_acknowledge(acks):
            refusal = partition.lease_is_over()
        if acks == ACKS_ALL:
            if refusal is None and partition.isr_count < partition.min_insync_replicas:
                refusal = self.too_few_replicas(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            return partition.high_watermark, refusal
        promised = partition.log.promised_offset
        followers = partition.leading.followers
        if acks <= ACKS_LEADER or followers is None:
            return promised, refusal
        if acks > partition.isr_count:
            # The ISR may never be that large again.
            return UNBOUNDED, self._too_few_for(acks)
        return followers.limit_of(acks, promised), refusal

    def _too_few_for(self, acks: int) -> KafkaError:
        partition = self._partition
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"acks={acks} is more than the {partition.isr_count} in-sync replicas of {partition.partition}",
        )

    def settle(self) -> None:
        """Complete the waiters whose records are safe now, or never can be."""
        for acks, waiters in list(self.waiters.items()):
            waiters.passed(*self.passed(acks))
            if not waiters:
                del self.waiters[acks]

    def refuse_all(self, reason: KafkaError) -> None:
        """Fail all waiters: nothing more will be acknowledged."""
        for waiters in self.waiters.values():
            waiters.refuse_all(reason)
        self.waiters.clear()
