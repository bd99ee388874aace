"""What each request does to the transaction of a transactional id, with Kafka's errors for what is refused.

Pure: a decision gets the transaction, the request and the time, and returns the next transaction and the answer.
Identities are checked before anything else, so a fenced producer always hears that it is fenced (KAFKA-19690). While a
transaction is prepared, its producer has to wait, and everybody else is refused as after the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_PRODUCER_EPOCH, TopicPartition
from tailrace.transactions.states import (
    COMPLETE,
    LAST_EPOCH,
    ProducerIdentity,
    State,
    Transaction,
)

#: Returns an unused producer id, or refuses while none is reserved.
TakeId: TypeAlias = Callable[[], int]


class Decision(NamedTuple):
    """The next state of a transaction, or None if it stays as it is, and who the producer is from now on."""

    write: Transaction | None
    #: None if the client has to ask again when the transaction has ended.
    answer: ProducerIdentity | None


# --- identities


def initialize(
    current: Transaction | None,
    known: ProducerIdentity | None,
    timeout_ms: int,
    now_ms: int,
    take_id: TakeId,
) -> Decision:
    """Make a client the producer of a transactional id; `known` is who it was, if it asks to stay that (KIP-360).

    An open transaction is aborted first, and the client has to ask again.
    """
    if current is None:
        created = Transaction(take_id(), 0, timeout_ms, update_ms=now_ms)
        return Decision(created, created.identity)
    if current.is_prepared:
        raise _concurrent()
    is_repeated = known is not None and _is_repeated(current, known)
    if known is not None and not is_repeated and known != current.identity:
        raise _fenced(current, known)
    if current.state is State.ONGOING:
        new_id = _new_id(current, take_id)
        # A producer that names itself asks for its own transaction to be aborted, and stays the producer.
        aborted = current.taken_over(now_ms, new_id) if known is None else current.aborted(now_ms, new_id)
        return Decision(aborted, None)
    if is_repeated:
        again = current.initialized_again(timeout_ms, now_ms)
        return Decision(again, again.identity)
    new = current.initialized(timeout_ms, now_ms, remembers=known is not None, new_id=_new_id(current, take_id))
    return Decision(new, new.identity)


def _is_repeated(current: Transaction, known: ProducerIdentity) -> bool:
    """Whether a client repeats a request that has already replaced the identity that it names."""
    if current.last_epoch == NO_PRODUCER_EPOCH or current.last_epoch != known.epoch:
        return False
    if known.producer_id == current.producer_id:
        return True
    return known.producer_id == current.previous_producer_id and known.epoch >= LAST_EPOCH


def _new_id(current: Transaction, take_id: TakeId) -> int | None:
    return take_id() if current.is_exhausted else None


# --- partitions


def add_partitions(
    current: Transaction | None, who: ProducerIdentity, partitions: Sequence[TopicPartition], now_ms: int
) -> Transaction | None:
    """Add partitions to the producer's transaction; None if they are all in it."""
    current = _checked(current, who)
    if current.state is State.ONGOING and all(partition in current.partitions for partition in partitions):
        return None
    return current.with_partitions(partitions, now_ms)


def verify_partitions(
    current: Transaction | None, who: ProducerIdentity, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, bool]:
    """Return for each partition whether it is in the producer's transaction."""
    current = _checked(current, who)
    return {partition: partition in current.partitions for partition in partitions}


def _checked(current: Transaction | None, who: ProducerIdentity) -> Transaction:
    """The transaction of a producer that may go on with it, or begin another one."""
    if current is None:
        raise _unknown(who)
    if current.is_prepared and who in (current.identity, current.next_identity):
        raise _concurrent()
    if current.producer_id != who.producer_id:
        raise _unknown(who)
    if current.producer_epoch != who.epoch:
        raise _fenced(current, who)
    return current


# --- ends


def end(current: Transaction | None, who: ProducerIdentity, *, is_commit: bool, now_ms: int) -> Decision:
    """Commit or abort, for a producer that keeps its epoch."""
    current = _checked(current, who)
    if current.state is State.ONGOING:
        return Decision(current.prepared(now_ms, is_commit=is_commit), who)
    if current.state in COMPLETE and current.is_commit == is_commit:
        return Decision(None, who)
    raise _no_end(current, is_commit=is_commit)


def end_with_new_epoch(
    current: Transaction | None, who: ProducerIdentity, *, is_commit: bool, now_ms: int, take_id: TakeId
) -> Decision:
    """Commit or abort, for a producer that gets another epoch at every end (KIP-890).

    The epoch tells a repeated request from the end of the next transaction. A transaction to which nothing was added
    can only be aborted (KAFKA-18464).
    """
    if current is not None and current.ended_as(who):
        if current.is_prepared:
            raise _concurrent()
        if current.state in COMPLETE:
            if current.is_commit == is_commit:
                return Decision(None, current.identity)
            raise _no_end(current, is_commit=is_commit)
    current = _checked(current, who)
    if is_commit and current.state is not State.ONGOING:
        raise _no_end(current, is_commit=is_commit)
    prepared = current.prepared_with_new_epoch(now_ms, is_commit=is_commit, new_id=_new_id(current, take_id))
    return Decision(prepared, prepared.next_identity)


def time_out(current: Transaction, now_ms: int, take_id: TakeId) -> Transaction:
    """Abort a transaction whose time is over."""
    return current.aborted(now_ms, _new_id(current, take_id))


def is_due(transaction: Transaction, now_ms: int) -> bool:
    """Whether the time of a transaction is over."""
    return transaction.state is State.ONGOING and transaction.start_ms + transaction.timeout_ms <= now_ms


# --- refusals


def _no_end(current: Transaction, *, is_commit: bool) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"The transaction cannot be {'committed' if is_commit else 'aborted'}: its state is {current.state.shown}.",
    )


def _concurrent() -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "The last transaction is still being ended.")


def _unknown(who: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"Producer id {who.producer_id} does not belong to this transactional id.",
    )


def _fenced(current: Transaction, who: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"Producer {who.producer_id} in epoch {who.epoch} was replaced: the transactional id belongs to producer "
        f"{current.producer_id} in epoch {current.producer_epoch}.",
    )
