"""Every request in every state: what follows, who the producer is, and what is refused with which of Kafka's errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.transactions.decisions import (
    Decision,
    add_partitions,
    end,
    end_with_new_epoch,
    initialize,
    is_due,
    time_out,
    verify_partitions,
)
from tailrace.transactions.records import decode_value, encode_value
from tailrace.transactions.states import LAST_EPOCH, TRANSITIONS, ProducerIdentity, State, Transaction

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 1_000
ID, EPOCH = 7, 3
ME = ProducerIdentity(ID, EPOCH)
NEW_ID = 8

EMPTY = Transaction(ID, EPOCH, 60_000, update_ms=1)
ONGOING = EMPTY.with_partitions([P0], 500)
COMMITTED = ONGOING.prepared(600, is_commit=True).completed(700)
ABORTED = ONGOING.prepared(600, is_commit=False).completed(700)
STATES = {
    State.EMPTY: EMPTY,
    State.ONGOING: ONGOING,
    State.PREPARE_COMMIT: ONGOING.prepared(600, is_commit=True),
    State.PREPARE_ABORT: ONGOING.prepared(600, is_commit=False),
    State.COMPLETE_COMMIT: COMMITTED,
    State.COMPLETE_ABORT: ABORTED,
}
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
NOT_OPEN = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def take_id() -> int:
    return NEW_ID


def code_of(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.code


def begin(transaction: Transaction | None, known: ProducerIdentity | None = None) -> Decision:
    return initialize(transaction, known, 60_000, NOW, take_id)


def end_v1(transaction: Transaction | None, who: ProducerIdentity, is_commit: bool) -> Decision:
    return end(transaction, who, is_commit=is_commit, now_ms=NOW)


def end_v2(transaction: Transaction | None, who: ProducerIdentity, is_commit: bool) -> Decision:
    return end_with_new_epoch(transaction, who, is_commit=is_commit, now_ms=NOW, take_id=take_id)


def written(decision: Decision) -> Transaction:
    assert decision.write is not None
    return decision.write


def reloaded(transaction: Transaction) -> Transaction:
    """What another coordinator knows of a transaction."""
    return decode_value(encode_value(transaction))


def at_epoch(epoch: int, transaction: Transaction) -> Transaction:
    return replace(transaction, producer_epoch=epoch)


# --- transitions


def test_a_transaction_goes_only_where_the_table_allows() -> None:
    for state, transaction in STATES.items():
        for to in State:
            if to in TRANSITIONS[state]:
                assert transaction._next(to, NOW).state is to
            else:
                with pytest.raises(AssertionError, match="cannot go from"):
                    transaction._next(to, NOW)


def test_states_have_kafkas_names() -> None:
    assert [state.shown for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


def test_a_transaction_is_never_updated_before_its_last_update() -> None:
    assert EMPTY.with_partitions([P0], 900).prepared(400, is_commit=True).update_ms == 900


# --- identities


def test_a_new_transactional_id_gets_a_new_producer_id() -> None:
    decision = begin(None)
    assert decision.answer == (NEW_ID, 0)
    assert written(decision).state is State.EMPTY
    # A producer that lost its id is welcome: nobody else can have it.
    assert begin(None, ProducerIdentity(99, 5)).answer == (NEW_ID, 0)


@pytest.mark.parametrize("state", NOT_OPEN)
def test_a_second_producer_gets_the_next_epoch(state: State) -> None:
    decision = begin(STATES[state])
    assert decision.answer == (ID, EPOCH + 1)
    assert written(decision).state is State.EMPTY
    assert not written(decision).partitions


@pytest.mark.parametrize("state", PREPARED)
@pytest.mark.parametrize("known", [None, ME, ProducerIdentity(99, 0)])
def test_nobody_gets_an_epoch_while_a_transaction_ends(state: State, known: ProducerIdentity | None) -> None:
    assert code_of(lambda: begin(STATES[state], known)) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_open_transaction_is_aborted_first_and_its_producer_never_comes_back() -> None:
    decision = begin(ONGOING)
    assert decision.answer is None
    aborted = written(decision)
    assert (aborted.state, aborted.identity) == (State.PREPARE_ABORT, (ID, EPOCH + 1))
    for after in (aborted, aborted.completed(NOW), reloaded(aborted.completed(NOW))):
        expected = ErrorCode.CONCURRENT_TRANSACTIONS if after.is_prepared else ErrorCode.PRODUCER_FENCED
        assert code_of(lambda after=after: begin(after, ME)) is expected
        for ending in (end_v1, end_v2):
            for is_commit in (True, False):
                refused = code_of(lambda after=after, e=ending, c=is_commit: e(after, ME, c))
                assert refused is ErrorCode.PRODUCER_FENCED
    # The producer that wanted the id gets an epoch that nobody was given before.
    assert begin(aborted.completed(NOW)).answer == (ID, EPOCH + 2)


def test_an_epoch_is_incremented_once_though_the_first_append_was_refused() -> None:
    # KAFKA-19367: what is refused by the journal leaves the transaction as it was.
    first, second = begin(ONGOING), begin(ONGOING)
    assert written(first).producer_epoch == written(second).producer_epoch == EPOCH + 1


@pytest.mark.parametrize("state", NOT_OPEN)
def test_a_producer_gets_its_next_epoch_and_the_same_one_if_it_asks_again(state: State) -> None:
    first = begin(STATES[state], ME)
    assert first.answer == (ID, EPOCH + 1)
    again = begin(written(first), ME)
    assert again.answer == (ID, EPOCH + 1)
    assert begin(written(again), ME).answer == (ID, EPOCH + 1)
    # After another producer came, it is fenced.
    other = written(begin(written(first)))
    assert code_of(lambda: begin(other, ME)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", [*NOT_OPEN, State.ONGOING])
@pytest.mark.parametrize(
    "known", [ProducerIdentity(ID, EPOCH - 1), ProducerIdentity(ID, EPOCH + 1), ProducerIdentity(99, EPOCH)]
)
def test_a_stranger_that_claims_to_be_the_producer_is_fenced(state: State, known: ProducerIdentity) -> None:
    assert code_of(lambda: begin(STATES[state], known)) is ErrorCode.PRODUCER_FENCED


def test_a_repeated_request_does_not_abort_the_transaction_that_began_since() -> None:
    begun = written(begin(EMPTY, ME)).with_partitions([P0], NOW)
    assert code_of(lambda: begin(begun, ME)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_names_itself_in_an_open_transaction_comes_back_after_the_abort() -> None:
    decision = begin(ONGOING, ME)
    assert decision.answer is None
    assert begin(written(decision).completed(NOW), ME).answer == (ID, EPOCH + 1)


@pytest.mark.parametrize("known", [None, ProducerIdentity(ID, LAST_EPOCH)])
def test_the_last_epoch_is_followed_by_a_new_producer_id(known: ProducerIdentity | None) -> None:
    last = at_epoch(LAST_EPOCH, COMMITTED)
    decision = begin(last, known)
    assert decision.answer == (NEW_ID, 0)
    assert written(decision).previous_producer_id == ID
    again = ProducerIdentity(ID, LAST_EPOCH)
    if known is None:
        assert code_of(lambda: begin(written(decision), again)) is ErrorCode.PRODUCER_FENCED
    else:
        assert begin(written(decision), again).answer == (NEW_ID, 0)


def test_an_abort_by_force_in_the_last_epoch_gives_nobody_an_epoch_that_cannot_be_fenced() -> None:
    last = at_epoch(LAST_EPOCH, ONGOING)
    for aborted in (written(begin(last)), time_out(last, NOW, take_id)):
        assert aborted.producer_epoch == 32767
        complete = aborted.completed(NOW)
        assert complete.identity == (NEW_ID, 0)
        assert begin(complete).answer == (NEW_ID, 1)


# --- partitions


@pytest.mark.parametrize("state", [*NOT_OPEN, State.ONGOING])
def test_the_first_partition_begins_a_transaction_and_others_join_it(state: State) -> None:
    after = add_partitions(STATES[state], ME, [P1], NOW)
    assert after is not None
    assert after.state is State.ONGOING
    is_new = state is not State.ONGOING
    assert list(after.partitions) == ([P1] if is_new else [P0, P1])
    assert after.start_ms == (NOW if is_new else 500)
    assert add_partitions(after, ME, [P1], NOW + 1) is None


@pytest.mark.parametrize("state", PREPARED)
def test_a_producer_waits_for_the_end_of_its_last_transaction(state: State) -> None:
    transaction = STATES[state]
    for call in (
        lambda: add_partitions(transaction, ME, [P1], NOW),
        lambda: verify_partitions(transaction, ME, [P0]),
        lambda: end_v1(transaction, ME, True),
        lambda: end_v1(transaction, ME, False),
        lambda: end_v2(transaction, ME, True),
    ):
        assert code_of(call) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", State.__members__.values())
def test_a_fenced_producer_hears_so_before_anything_else(state: State) -> None:
    # KAFKA-19690: not that a partition is not in the transaction, nor that it cannot end in this state.
    transaction = replace(ONGOING, state=state)
    for who, expected in (
        (ProducerIdentity(ID, EPOCH - 1), ErrorCode.PRODUCER_FENCED),
        (ProducerIdentity(99, EPOCH), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ):
        for call in (
            lambda who=who: add_partitions(transaction, who, [P1], NOW),
            lambda who=who: verify_partitions(transaction, who, [P1]),
            lambda who=who: end_v1(transaction, who, True),
            lambda who=who: end_v2(transaction, who, False),
        ):
            assert code_of(call) is expected


def test_partitions_are_verified_one_by_one() -> None:
    assert verify_partitions(ONGOING, ME, [P0, P1]) == {P0: True, P1: False}
    assert verify_partitions(COMMITTED, ME, [P0]) == {P0: False}


def test_an_unknown_transactional_id_has_no_producer() -> None:
    for call in (
        lambda: add_partitions(None, ME, [P0], NOW),
        lambda: verify_partitions(None, ME, [P0]),
        lambda: end_v1(None, ME, True),
        lambda: end_v2(None, ME, True),
    ):
        assert code_of(call) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- ends


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_older_producer_keeps_its_epoch(is_commit: bool) -> None:
    decision = end_v1(ONGOING, ME, is_commit)
    assert decision.answer == ME
    prepared = written(decision)
    assert prepared.state is (State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT)
    assert prepared.identity == ME
    complete = prepared.completed(NOW)
    assert (complete.is_commit, complete.identity, dict(complete.partitions)) == (is_commit, ME, {})


@pytest.mark.parametrize(
    ("state", "is_commit", "expected"),
    [
        (State.EMPTY, True, ErrorCode.INVALID_TXN_STATE),
        (State.EMPTY, False, ErrorCode.INVALID_TXN_STATE),
        (State.COMPLETE_COMMIT, True, ErrorCode.NONE),
        (State.COMPLETE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, False, ErrorCode.NONE),
    ],
)
def test_a_repeated_end_of_an_older_producer_hears_the_outcome(
    state: State, is_commit: bool, expected: ErrorCode
) -> None:
    for transaction in (STATES[state], reloaded(STATES[state])):
        if expected is ErrorCode.NONE:
            assert end_v1(transaction, ME, is_commit) == Decision(None, ME)
        else:
            assert code_of(lambda t=transaction: end_v1(t, ME, is_commit)) is expected


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_newer_producer_gets_another_epoch_and_hears_the_same_if_it_repeats_its_end(is_commit: bool) -> None:
    decision = end_v2(ONGOING, ME, is_commit)
    after = ProducerIdentity(ID, EPOCH + 1)
    assert decision.answer == after
    prepared = written(decision)
    assert prepared.identity == after
    for again in (prepared, reloaded(prepared)):
        assert code_of(lambda t=again: end_v2(t, ME, is_commit)) is ErrorCode.CONCURRENT_TRANSACTIONS
    for again in (prepared.completed(NOW), reloaded(prepared.completed(NOW))):
        assert end_v2(again, ME, is_commit) == Decision(None, after)
        assert code_of(lambda t=again: end_v2(t, ME, not is_commit)) is ErrorCode.INVALID_TXN_STATE


def test_the_end_of_the_next_transaction_waits_for_the_last_one() -> None:
    # ydb#52731: no other error, or the client would take the next transaction for lost.
    prepared = written(end_v2(ONGOING, ME, True))
    me = prepared.identity
    for call in (
        lambda: end_v2(prepared, me, True),
        lambda: end_v2(prepared, me, False),
        lambda: add_partitions(prepared, me, [P1], NOW),
        lambda: verify_partitions(prepared, me, [P1]),
        lambda: begin(prepared, me),
    ):
        assert code_of(call) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", NOT_OPEN)
def test_a_newer_producer_may_abort_a_transaction_without_partitions_but_not_commit_it(state: State) -> None:
    # KAFKA-18464: the client could not add its first partition, and aborts.
    decision = end_v2(STATES[state], ME, False)
    assert decision.answer == (ID, EPOCH + 1)
    assert written(decision).state is State.PREPARE_ABORT
    assert not written(decision).partitions
    assert written(decision).completed(NOW).identity == (ID, EPOCH + 1)
    assert code_of(lambda: end_v2(STATES[state], ME, True)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_end_in_the_last_epoch_gives_a_new_producer_id(is_commit: bool) -> None:
    # KAFKA-18660: the answer has the id and epoch that the next transaction really has.
    me, after = ProducerIdentity(ID, LAST_EPOCH), ProducerIdentity(NEW_ID, 0)
    decision = end_v2(at_epoch(LAST_EPOCH, ONGOING), me, is_commit)
    assert decision.answer == after
    prepared = written(decision)
    assert prepared.identity == (ID, 32767)
    for waiting in (prepared, reloaded(prepared)):
        for who in (me, after):
            assert code_of(lambda t=waiting, w=who: end_v2(t, w, is_commit)) is ErrorCode.CONCURRENT_TRANSACTIONS
        refused = code_of(lambda t=waiting: add_partitions(t, after, [P1], NOW))
        assert refused is ErrorCode.CONCURRENT_TRANSACTIONS
    for complete in (prepared.completed(NOW), reloaded(prepared.completed(NOW))):
        assert complete.identity == after
        assert end_v2(complete, me, is_commit) == Decision(None, after)
        begun = add_partitions(complete, after, [P1], NOW)
        assert begun is not None
        assert written(end_v2(begun, after, True)).identity == (NEW_ID, 1)
        assert code_of(lambda t=begun: end_v2(t, me, is_commit)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_epoch_before_the_last_is_followed_by_the_last() -> None:
    me = ProducerIdentity(ID, LAST_EPOCH - 1)
    assert end_v2(at_epoch(LAST_EPOCH - 1, ONGOING), me, True).answer == (ID, LAST_EPOCH)


# --- time


def test_a_transaction_is_due_after_its_timeout() -> None:
    assert not is_due(ONGOING, 500 + 59_999)
    assert is_due(ONGOING, 500 + 60_000)
    for state in (*PREPARED, *NOT_OPEN):
        assert not is_due(STATES[state], 10**9)


def test_a_producer_whose_transaction_took_too_long_is_fenced_but_may_come_back() -> None:
    aborted = time_out(ONGOING, NOW, take_id)
    assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, EPOCH + 1)
    complete = aborted.completed(NOW)
    for transaction in (complete, reloaded(complete)):
        assert code_of(lambda t=transaction: add_partitions(t, ME, [P0], NOW)) is ErrorCode.PRODUCER_FENCED
        assert code_of(lambda t=transaction: end_v1(t, ME, True)) is ErrorCode.PRODUCER_FENCED
        # It does not hear that a commit succeeded, but may agree to the abort.
        assert code_of(lambda t=transaction: end_v2(t, ME, True)) is ErrorCode.INVALID_TXN_STATE
        assert end_v2(transaction, ME, False) == Decision(None, ProducerIdentity(ID, EPOCH + 1))
        assert begin(transaction, ME).answer == (ID, EPOCH + 1)
        # A producer that came in between wins.
        assert code_of(lambda t=transaction: begin(written(begin(t)), ME)) is ErrorCode.PRODUCER_FENCED
