"""One transactional id: its producer, the state of its transaction, and the legal transitions.

A transaction is a value, and a transition makes the next one. Invariant: no epoch of a producer id is given out twice,
and the epoch of a prepared or completed abort by force is given to nobody. This module must not know requests, records
or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from tailrace.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

#: The first epoch after which a producer gets a new id instead of another epoch. One more is left for the marker that
#: ends its last transaction.
LAST_EPOCH = 32766
_MARKER_EPOCH = 32767
#: What `client_version` is of a producer whose epoch was incremented when its last transaction ended (KIP-890).
EPOCH_AT_EVERY_END = 2
#: What it is after another producer has taken the transactional id.
_TAKEN_OVER = 1


class State(IntEnum):
    """The states, with Kafka's numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """The name that Kafka's tools show."""
        return self.name.title().replace("_", "")


#: The states that may follow each state. Nothing is written for PREPARE_EPOCH_FENCE, which every abort by force passes,
#: or for DEAD: the record of an expired id is removed.
TRANSITIONS: Mapping[State, tuple[State, ...]] = MappingProxyType(
    {
        State.EMPTY: (State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD),
        State.ONGOING: (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE),
        State.PREPARE_EPOCH_FENCE: (State.PREPARE_ABORT, State.COMPLETE_ABORT),
        State.PREPARE_COMMIT: (State.COMPLETE_COMMIT,),
        State.PREPARE_ABORT: (State.COMPLETE_ABORT,),
        State.COMPLETE_COMMIT: (State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD),
        State.COMPLETE_ABORT: (State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD),
        State.DEAD: (),
    }
)
#: The outcome is decided, but some partitions may lack their marker.
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE)
#: The last transaction has ended in every partition.
COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class ProducerIdentity(NamedTuple):
    """The id and epoch by which a producer is known."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """The producer of a transactional id, and its transaction if it has one."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    #: In order of addition.
    partitions: Mapping[TopicPartition, None] = field(default_factory=dict)
    start_ms: int = NO_TIMESTAMP
    update_ms: int = NO_TIMESTAMP
    #: The producer id before the last transition.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The id that takes effect when the prepared transaction is complete.
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    #: The epoch before the last one, while the producer may repeat the request that changed it. Not in the log, but for
    #: ends of transactions it follows from what is.
    last_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def next_identity(self) -> ProducerIdentity:
        """The identity that the producer has once the prepared transaction is complete."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.identity
        return ProducerIdentity(self.next_producer_id, 0)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer needs a new id before its next epoch."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def is_commit(self) -> bool:
        """Whether a prepared or complete transaction is committed."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def may_expire(self) -> bool:
        return State.DEAD in TRANSITIONS[self.state]

    def with_only(self, partitions: Iterable[TopicPartition]) -> Transaction:
        """The same transaction for people, with some of its partitions."""
        return replace(self, partitions=dict.fromkeys(partitions))

    def ended_as(self, who: ProducerIdentity) -> bool:
        """Whether the last transaction was ended by this identity, which the end has replaced by another."""
        if self.client_version < EPOCH_AT_EVERY_END or self.last_epoch != who.epoch:
            return False
        before = self.previous_producer_id if self.state in COMPLETE else self.producer_id
        return before == who.producer_id

    def remembering_its_last_epoch(self) -> Transaction:
        """The transaction as it was before it was written and read again."""
        if self.client_version < EPOCH_AT_EVERY_END or not (self.is_prepared or self.state in COMPLETE):
            return self
        last_epoch = self.producer_epoch - 1 if self.producer_epoch > 0 else LAST_EPOCH
        return replace(self, last_epoch=last_epoch)

    # --- transitions

    def initialized(self, timeout_ms: int, now_ms: int, *, remembers: bool, new_id: int | None) -> Transaction:
        """Give the producer its next epoch, or epoch 0 of a new id; it may repeat its request if it `remembers`."""
        return self._next(
            State.EMPTY,
            now_ms,
            producer_id=self.producer_id if new_id is None else new_id,
            producer_epoch=self.producer_epoch + 1 if new_id is None else 0,
            last_epoch=self.producer_epoch if remembers else NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            partitions={},
            start_ms=NO_TIMESTAMP,
            client_version=0,
        )

    def initialized_again(self, timeout_ms: int, now_ms: int) -> Transaction:
        """Give the producer the same epoch again."""
        return self._next(
            State.EMPTY,
            now_ms,
            timeout_ms=timeout_ms,
            partitions={},
            start_ms=NO_TIMESTAMP,
            client_version=0,
            previous_producer_id=self.previous_producer_id,
        )

    def with_partitions(self, added: Iterable[TopicPartition], now_ms: int) -> Transaction:
        """Add partitions, to a new transaction if there is none."""
        return self._next(
            State.ONGOING,
            now_ms,
            partitions={**self.partitions, **dict.fromkeys(added)},
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            client_version=0,
            last_epoch=NO_PRODUCER_EPOCH,
        )

    def prepared(self, now_ms: int, *, is_commit: bool) -> Transaction:
        """Decide the outcome, for a producer that keeps its epoch."""
        return self._next(State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT, now_ms, client_version=0)

    def prepared_with_new_epoch(self, now_ms: int, *, is_commit: bool, new_id: int | None) -> Transaction:
        """Decide the outcome, and give the producer another epoch, or a new id where its epochs are exhausted."""
        return self._next(
            State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
            now_ms,
            producer_epoch=min(self.producer_epoch + 1, _MARKER_EPOCH),
            last_epoch=self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID if new_id is None else new_id,
            start_ms=now_ms if self.start_ms == NO_TIMESTAMP else self.start_ms,
            client_version=EPOCH_AT_EVERY_END,
        )

    def aborted(self, now_ms: int, new_id: int | None) -> Transaction:
        """Abort by force; the producer may come back with the epoch that it knows, as nobody else has a later one."""
        fence = self._next(State.PREPARE_EPOCH_FENCE, now_ms)
        return fence.prepared_with_new_epoch(now_ms, is_commit=False, new_id=new_id)

    def taken_over(self, now_ms: int, new_id: int | None) -> Transaction:
        """Abort by force because another producer wants the transactional id; this one can never come back."""
        aborted = self.aborted(now_ms, new_id)
        return replace(aborted, client_version=_TAKEN_OVER, last_epoch=NO_PRODUCER_EPOCH)

    def completed(self, now_ms: int) -> Transaction:
        """Note that every partition has its marker; the next identity takes effect."""
        producer_id, epoch = self.next_identity
        return self._next(
            State.COMPLETE_COMMIT if self.is_commit else State.COMPLETE_ABORT,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions={},
        )

    def _next(self, state: State, now_ms: int, **changes: object) -> Transaction:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a transaction cannot go from {self.state.shown} to {state.shown}")
        if "previous_producer_id" not in changes:
            changes["previous_producer_id"] = self.producer_id
        # Clocks of brokers differ, and an update is never earlier than the last one.
        return replace(self, state=state, update_ms=max(now_ms, self.update_ms), **changes)  # type: ignore[arg-type]
