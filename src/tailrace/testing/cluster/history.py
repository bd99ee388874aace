"""The history of a simulated cluster: everything that was promised or observed, checked as it grows.

Owns the committed records of every partition, what producers were told, and which brokers failed when. Invariant: what
was once known to be committed never changes; an observation that differs raises `Violation`. This module must not know
how anything was observed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.model import TopicPartition
from tailrace.testing.loop import SimLoop

ACKS_ALL = -1


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


# The names of the invariants in reports.
LOST = "an acknowledged record is lost"
TWO_VALUES = "an offset has two values"
ORDER = "the order of a producer's records is not kept"
DUPLICATE = "a record of an idempotent producer is duplicated"
TWO_LEADERS = "two brokers lead in one epoch"
DISAGREE = "replicas disagree below the high watermark"
WATERMARK = "the high watermark goes back within an epoch"
BEYOND = "a consumer reads beyond the high watermark"
GROUP_OFFSETS = "a committed group offset goes back"
ISR = "a member of the ISR lacks committed records"
TOO_FEW = "acknowledged with fewer in-sync replicas than required"
ELECTION = "an election breaks the rules"
FENCE = "a deposed controller's write is accepted"
LIVENESS = "the cluster does not recover"
STALE = "a deposed leader keeps its clients"
UNARCHIVED = "a broker has deleted unarchived records"
ARCHIVE = "the archive differs from what was committed to it"
SELF = "a broker reports its own failure"
CORRUPT = "a consumer gets damaged records"
UNASKED = "records are gone without a deletion"
NAMESAKE = "data of a deleted topic counts for its namesake"
CONFIG = "an acknowledged setting is lost"
SKIPPED = "a group has committed records that it has not read"
STALLED = "a step of a broker's loop takes too long"
UNCLEAN = "a partition that allows unclean elections stays without a leader"

# Special failures: one does no harm to acknowledged records, the other hits all brokers alike.
STOP = "stop"
STORE_AWAY = "store away"


class Seen(NamedTuple):
    """A committed record, and when and by whom it was first seen."""

    key: bytes | None
    value: bytes | None
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A record that was acknowledged to a producer."""

    producer: str
    partition: TopicPartition
    value: bytes
    offset: int
    acks: int
    broker_id: int
    sent_at: float
    acknowledged_at: float


@dataclass(slots=True)
class Failure:
    """A fault with its start and end; `brokers` are those that failed."""

    kind: str
    brokers: tuple[int, ...]
    began_at: float
    ended_at: float | None = None
    #: Whether any one of its brokers explains it: a cut between two is the failure of either.
    is_of_either: bool = False

    def overlaps(self, since: float, until: float) -> bool:
        return self.began_at <= until and (self.ended_at is None or self.ended_at >= since)


@dataclass(slots=True)
class ClusterHistory:
    """Everything that is known of one run."""

    loop: SimLoop
    committed: dict[TopicPartition, dict[int, Seen]] = field(default_factory=dict)
    #: One more than the highest offset known to be committed.
    committed_ends: dict[TopicPartition, int] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: Everything ever sent in a request, by producer.
    sent: dict[bytes, str] = field(default_factory=dict)
    #: The offset below which a deletion of records was requested.
    trimmed: dict[TopicPartition, int] = field(default_factory=dict)
    #: The offset below which a deletion of records was acknowledged.
    trimmed_for_sure: dict[TopicPartition, int] = field(default_factory=dict)
    #: Topics that allow unclean elections: committed records may be lost, and offsets get other values.
    unclean_topics: dict[str, None] = field(default_factory=dict)
    #: Brokers whose disk has lost data, which they refuse to serve.
    rotten: dict[int, None] = field(default_factory=dict)
    #: Whether there are no faults any more.
    is_healed: bool = False
    #: The highest high watermark seen at a leader, by partition and epoch.
    _watermarks: dict[tuple[TopicPartition, int], tuple[int, float]] = field(default_factory=dict)
    _leaders: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)

    # --- records

    def is_committed(
        self, partition: TopicPartition, offset: int, key: bytes | None, value: bytes | None, by: str
    ) -> None:
        """Note that an observer considers a record committed."""
        records = self.committed.setdefault(partition, {})
        known = records.get(offset)
        if known is None:
            records[offset] = Seen(key, value, self.loop.time(), by)
            if offset >= self.committed_ends.get(partition, 0):
                self.committed_ends[partition] = offset + 1
        elif (known.key, known.value) != (key, value) and self.may_lose(partition) and not self.is_healed:
            records[offset] = Seen(key, value, self.loop.time(), by)
        elif (known.key, known.value) != (key, value):
            raise Violation(
                DISAGREE if by.startswith("replica") and known.by.startswith("replica") else TWO_VALUES,
                f"{partition} at {offset}: {value!r} by {by}, but {known.value!r} by {known.by} at {known.at:.3f} s",
            )

    def may_lose(self, partition: TopicPartition) -> bool:
        """True if committed records of a partition may be lost."""
        return partition.topic in self.unclean_topics

    def begin_anew(self) -> None:
        """Forget partitions that may lose records: there are no more faults, and their present content counts."""
        for partition in [partition for partition in self.committed if self.may_lose(partition)]:
            del self.committed[partition]
            self.committed_ends.pop(partition, None)
        self.is_healed = True

    def committed_end(self, partition: TopicPartition) -> int:
        """Return one more than the highest offset known to be committed."""
        return self.committed_ends.get(partition, 0)

    def acknowledged(self, promise: Promise) -> None:
        """Note that a producer got an acknowledgement."""
        self.promises.append(promise)
        if promise.acks == ACKS_ALL:
            self.is_committed(
                promise.partition, promise.offset, None, promise.value, f"acknowledged to {promise.producer}"
            )

    # --- leaders

    def leads(self, partition: TopicPartition, epoch: int, broker_id: int) -> None:
        """Note that a broker considers itself the leader, or that the store says so."""
        leader = self._leaders.setdefault((partition, epoch), broker_id)
        if leader != broker_id:
            raise Violation(TWO_LEADERS, f"{partition} in epoch {epoch}: {leader} and {broker_id}")

    def high_watermark(self, partition: TopicPartition, epoch: int, offset: int, since: float, by: str) -> None:
        """Note that a leader reported its high watermark, read at some time after `since`."""
        known, known_at = self._watermarks.get((partition, epoch), (0, 0.0))
        if offset < known and known_at < since:
            raise Violation(WATERMARK, f"{partition} in epoch {epoch}: {offset} by {by} after {known}")
        if offset > known:
            self._watermarks[partition, epoch] = offset, self.loop.time()

    # --- failures

    def failed(self, kind: str, brokers: Iterable[int], *, is_of_either: bool = False) -> Failure:
        """Record the start of a failure of brokers."""
        failure = Failure(kind, tuple(brokers), self.loop.time(), is_of_either=is_of_either)
        self.failures.append(failure)
        return failure

    def explains_loss(self, leaders: Collection[int], since: float, until: float) -> bool:
        """True if there was a failure that records acknowledged only by a leader do not survive.

        That is a failure of a broker that led. A clean stop does not count, unless others failed too and may not have
        caught up; neither does an outage of the store for all.
        """
        found = [failure for failure in self.failures if failure.overlaps(since, until) and failure.kind != STORE_AWAY]
        by_leaders = [failure for failure in found if any(broker_id in leaders for broker_id in failure.brokers)]
        if all(failure.kind == STOP for failure in by_leaders):
            return bool(by_leaders) and any(failure.kind != STOP for failure in found)
        return True

    def count_failed(self, since: float, until: float) -> int:
        """Return the minimum number of brokers that had failed at some moment of an interval."""
        found = [failure for failure in self.failures if failure.overlaps(since, until)]
        failed = {broker_id for failure in found if not failure.is_of_either for broker_id in failure.brokers}
        count = len(failed)
        for failure in found:
            if failure.is_of_either and not failed.intersection(failure.brokers):
                failed.update(failure.brokers)
                count += 1
        return count
