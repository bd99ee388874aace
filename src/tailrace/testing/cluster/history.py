"""What a simulated cluster was seen to promise and to hold, by everybody who looked: one truth, checked as it grows.

Owns the committed records of every partition, what producers were told, and which brokers failed when. Invariant: what
was once known to be committed never changes; whoever sees anything else raises `Violation`. It must not know how
anybody came to see something.
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


# The invariants, by the names under which they are reported.
LOST = "an acknowledged record is lost"
TWO_VALUES = "an offset has two values"
ORDER = "the order of a producer's records is not kept"
DUPLICATE = "a record of an idempotent producer is there twice"
TWO_LEADERS = "two brokers lead in one epoch"
DISAGREE = "replicas disagree below the high watermark"
WATERMARK = "the high watermark goes back within an epoch"
BEYOND = "a consumer reads beyond the high watermark"
GROUP_OFFSETS = "a committed group offset goes back"
ISR = "a member of the ISR lacks what is committed"
TOO_FEW = "acknowledged with fewer in-sync replicas than asked for"
ELECTION = "a leader is not elected as it should be"
FENCE = "a deposed controller's write is taken"
LIVENESS = "the cluster does not become whole again"
STALE = "a leader that was deposed keeps its clients"
UNARCHIVED = "a broker has given up what is not archived"
ARCHIVE = "the archive is not what was committed to it"
SELF = "a broker says itself that it failed"
CORRUPT = "a consumer is given what is damaged"
UNASKED = "records are gone that nobody deleted"
NAMESAKE = "what belonged to a deleted topic counts for its namesake"
CONFIG = "an acknowledged setting is not kept"
SKIPPED = "a group has committed what nobody in it has read"
STALLED = "a step of a broker's loop takes too long"
UNCLEAN = "a partition whose election may be unclean stays without a leader"

# Failures that are told from others: one does no harm to what was acknowledged, the other to nobody in particular.
STOP = "stop"
STORE_AWAY = "store away"


class Seen(NamedTuple):
    """A committed record, and when and by whom it was first seen to be."""

    key: bytes | None
    value: bytes | None
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A record that a producer was told is in the log."""

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
    """Something that happened to brokers, from when to when; `brokers` are those that failed by it."""

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
    """All that is known of one run."""

    loop: SimLoop
    committed: dict[TopicPartition, dict[int, Seen]] = field(default_factory=dict)
    #: One more than the highest offset known to be committed.
    committed_ends: dict[TopicPartition, int] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: By producer: everything that was ever put into a request.
    sent: dict[bytes, str] = field(default_factory=dict)
    #: Below which offset somebody has asked for records to be deleted.
    trimmed: dict[TopicPartition, int] = field(default_factory=dict)
    #: Below which offset somebody was told that records are deleted.
    trimmed_for_sure: dict[TopicPartition, int] = field(default_factory=dict)
    #: Topics in which elections may be unclean: what was committed may be lost, and offsets get other values.
    unclean_topics: dict[str, None] = field(default_factory=dict)
    #: Brokers whose disk has lost something, which they refuse to serve.
    rotten: dict[int, None] = field(default_factory=dict)
    #: Whether nothing goes wrong any more.
    is_healed: bool = False
    #: Highest high watermark that a leader was seen to have, by partition and epoch.
    _watermarks: dict[tuple[TopicPartition, int], tuple[int, float]] = field(default_factory=dict)
    _leaders: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)

    # --- records

    def is_committed(
        self, partition: TopicPartition, offset: int, key: bytes | None, value: bytes | None, by: str
    ) -> None:
        """Somebody holds a record for committed."""
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
        """Whether what is committed in a partition may be lost."""
        return partition.topic in self.unclean_topics

    def begin_anew(self) -> None:
        """Forget what partitions had that may lose it: nothing goes wrong any more, and what is there now counts."""
        for partition in [partition for partition in self.committed if self.may_lose(partition)]:
            del self.committed[partition]
            self.committed_ends.pop(partition, None)
        self.is_healed = True

    def committed_end(self, partition: TopicPartition) -> int:
        """One more than the highest offset that anybody knows to be committed."""
        return self.committed_ends.get(partition, 0)

    def acknowledged(self, promise: Promise) -> None:
        """A producer was told that its record is in the log."""
        self.promises.append(promise)
        if promise.acks == ACKS_ALL:
            self.is_committed(
                promise.partition, promise.offset, None, promise.value, f"acknowledged to {promise.producer}"
            )

    # --- leaders

    def leads(self, partition: TopicPartition, epoch: int, broker_id: int) -> None:
        """A broker takes itself for the leader, or the store says so."""
        leader = self._leaders.setdefault((partition, epoch), broker_id)
        if leader != broker_id:
            raise Violation(TWO_LEADERS, f"{partition} in epoch {epoch}: {leader} and {broker_id}")

    def high_watermark(self, partition: TopicPartition, epoch: int, offset: int, since: float, by: str) -> None:
        """A leader has said how far its log is committed, at some time since then."""
        known, known_at = self._watermarks.get((partition, epoch), (0, 0.0))
        if offset < known and known_at < since:
            raise Violation(WATERMARK, f"{partition} in epoch {epoch}: {offset} by {by} after {known}")
        if offset > known:
            self._watermarks[partition, epoch] = offset, self.loop.time()

    # --- failures

    def failed(self, kind: str, brokers: Iterable[int], *, is_of_either: bool = False) -> Failure:
        """Something begins to go wrong with brokers."""
        failure = Failure(kind, tuple(brokers), self.loop.time(), is_of_either=is_of_either)
        self.failures.append(failure)
        return failure

    def explains_loss(self, leaders: Collection[int], since: float, until: float) -> bool:
        """Whether something happened that what a leader acknowledged alone does not survive.

        That is a failure of one that led. An orderly stop is none, unless others failed too and may not have caught up;
        nor is a store that is away for all.
        """
        found = [failure for failure in self.failures if failure.overlaps(since, until) and failure.kind != STORE_AWAY]
        by_leaders = [failure for failure in found if any(broker_id in leaders for broker_id in failure.brokers)]
        if all(failure.kind == STOP for failure in by_leaders):
            return bool(by_leaders) and any(failure.kind != STOP for failure in found)
        return True

    def count_failed(self, since: float, until: float) -> int:
        """How many brokers had failed, at the least, at some moment of an interval."""
        found = [failure for failure in self.failures if failure.overlaps(since, until)]
        failed = {broker_id for failure in found if not failure.is_of_either for broker_id in failure.brokers}
        count = len(failed)
        for failure in found:
            if failure.is_of_either and not failed.intersection(failure.brokers):
                failed.update(failure.brokers)
                count += 1
        return count
