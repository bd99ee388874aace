"""Idempotent producers: each batch once and in order, and retries answered as the first time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_OFFSET
from tailrace.records.batch import BatchHeader, read_header
from tailrace.records.markers import Marker
from tailrace.storage.producer_entry import REMEMBERED_BATCHES
from tailrace.storage.producer_state import ProducerState
from tests.unit.storage.logs import Logs, append, batch

LAST = 2**31 - 1


def header(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return read_header(batch(count, producer=(producer_id, epoch, sequence)))


def written(*headers: BatchHeader) -> ProducerState:
    """A state after batches that follow each other in the log."""
    state = ProducerState()
    offset = 0
    for each in headers:
        if each.base_sequence != 0 and each.producer_id not in dict(state.entries()):
            assert refusal(state, each) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert state.check(each) is None
        state.update(each, offset, timestamp=1000 + offset)
        offset += each.record_count
    return state


def refusal(state: ProducerState, each: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(each)
    return caught.value.code


def test_batches_that_follow_each_other_are_accepted() -> None:
    assert len(written(header(0, 5), header(5, 1), header(6, 10))) == 1


@pytest.mark.parametrize("sequence", [0, 4, 6, 1000, LAST])
def test_a_gap_or_a_step_back_is_out_of_order(sequence: int) -> None:
    assert refusal(written(header(0, 5)), header(sequence, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_is_answered_with_the_offsets_of_the_first_time() -> None:
    sent = [header(number * 3, 3) for number in range(REMEMBERED_BATCHES)]
    state = written(*sent)
    for number, each in enumerate(sent):
        earlier = state.check(each)
        assert earlier is not None
        assert (earlier.base_offset, earlier.last_offset) == (number * 3, number * 3 + 2)


def test_a_retry_of_a_batch_that_is_no_longer_remembered_is_known_to_be_below_those_that_are() -> None:
    state = written(*(header(number * 2, 2) for number in range(REMEMBERED_BATCHES + 3)))
    assert state.check(header(6, 2)) == (6, 7, 6, 7, 1006)
    for forgotten in (header(0, 2), header(4, 2), header(1), header(0, 6)):
        earlier = state.check(forgotten)
        assert earlier is not None
        assert (earlier.base_offset, earlier.last_offset) == (NO_OFFSET, 5)
    for other in (header(5, 2), header(6), header(17), header(LAST), header(LAST, 2)):
        assert refusal(state, other) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_is_before_the_first_that_was_seen_is_not_taken_for_written() -> None:
    state = written(*(header(10 + number) for number in range(REMEMBERED_BATCHES + 2)))
    assert state.check(header(10)) is not None
    assert refusal(state, header(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(9, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_that_another_leader_let_pass_is_not_taken_for_written() -> None:
    state = written(*(header(number) for number in range(3)))
    for number in range(REMEMBERED_BATCHES + 2):
        state.update(header(100 + number), 3 + number, timestamp=0)
    assert state.check(header(100)) is not None
    for other in (header(2), header(50), header(99)):
        assert refusal(state, other) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("after", range(1, REMEMBERED_BATCHES + 2))
def test_of_what_was_before_such_a_gap_only_the_remembered_is_known(after: int) -> None:
    state = written(*(header(number) for number in range(REMEMBERED_BATCHES + 2)))
    for number in range(after):
        state.update(header(100 + number), 50 + number, timestamp=0)
    remembered = [batch.base_sequence for _, entry in state.entries() for batch in entry.batches]
    for sequence in (*range(REMEMBERED_BATCHES + 3), 50, 99, LAST, LAST - 1):
        if sequence in remembered:
            assert state.check(header(sequence)) is not None
        else:
            assert refusal(state, header(sequence)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(100)) is not None
    assert state.check(header(100 + after)) is None


@pytest.mark.parametrize("cut", range(1, REMEMBERED_BATCHES))
def test_a_log_that_was_cut_knows_what_is_left_of_its_producers(cut: int) -> None:
    count = 2 * REMEMBERED_BATCHES
    state = written(*(header(number) for number in range(count))).below(count - cut)
    assert state is not None
    for sequence in range(count - cut):
        assert state.check(header(sequence)) is not None
    assert state.check(header(count - cut)) is None
    assert refusal(state, header(count - cut + 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(LAST)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_from_before_the_largest_number_is_known_after_it() -> None:
    state = written(
        header(LAST - 2), *(header((LAST - 1 + number) % (LAST + 1)) for number in range(REMEMBERED_BATCHES))
    )
    earlier = state.check(header(LAST - 2))
    assert earlier is not None
    assert earlier.base_offset == NO_OFFSET
    assert refusal(state, header(LAST - 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(100)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_of_another_size_is_no_retry() -> None:
    assert refusal(written(header(0, 5)), header(0, 4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_numbers_go_on_at_zero_after_the_largest() -> None:
    state = written(header(LAST - 1, 2))
    assert state.check(header(0)) is None
    assert refusal(state, header(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_may_itself_run_over_the_largest_number() -> None:
    state = written(header(LAST - 1, 5))
    assert state.check(header(3)) is None
    assert state.check(header(LAST - 1, 5)) is not None
    assert refusal(state, header(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_nobody_knows_may_start_anywhere_if_it_says_so_twice() -> None:
    state = ProducerState()
    assert refusal(state, header(1234)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refusal(state, header(1235)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(1234)) is None


def test_a_producer_nobody_knows_may_start_with_what_was_in_flight_with_another_leader() -> None:
    state = ProducerState()
    assert refusal(state, header(2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert state.check(header(0, 2)) is None
    state.update(header(0, 2), 0, 0)
    assert state.check(header(2)) is None


def test_a_producer_nobody_knows_is_held_to_the_batch_that_it_has_to_send_again() -> None:
    state = ProducerState()
    state.refused(header(42))
    state.refused(header(40, 2))
    state.refused(header(43))
    for early in (header(42), header(43)):
        assert refusal(state, early) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, producer_id=8)) is None
    assert state.check(header(0, epoch=1)) is None
    assert state.check(header(40, 2)) is None
    state.update(header(40, 2), 0, 0)
    assert state.check(header(42)) is None
    state.expire(before_ms=1)
    assert refusal(state, header(99)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert state.check(header(99)) is None


def test_what_a_known_producer_has_to_send_again_is_known_by_its_sequence() -> None:
    state = written(header(0))
    state.refused(header(1))
    assert refusal(state, header(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state.expire(before_ms=1 << 60)
    assert refusal(state, header(2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert state.check(header(2)) is None


def test_too_many_unknown_producers_are_not_refused_one_after_another_for_ever() -> None:
    state = ProducerState()
    for producer_id in range(1000):
        assert refusal(state, header(5, producer_id=producer_id)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert state.check(header(5, producer_id=1000)) is None


def test_of_many_unknown_producers_the_last_ones_are_held_to_their_order() -> None:
    state = ProducerState()
    for producer_id in range(1001):
        state.refused(header(0, producer_id=producer_id))
    assert state.check(header(1, producer_id=0)) is None
    assert refusal(state, header(1, producer_id=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_fenced() -> None:
    state = written(header(0, epoch=3))
    assert refusal(state, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_starts_at_zero() -> None:
    state = written(header(0, 5, epoch=3))
    assert refusal(state, header(5, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=4)) is None
    state.update(header(0, epoch=4), 5, 0)
    assert refusal(state, header(5, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(header(1, epoch=4)) is None


def test_producers_do_not_see_each_other() -> None:
    state = written(header(0, 5))
    assert state.check(header(0, 5, producer_id=8)) is None


def test_silent_producers_are_forgotten_and_the_others_are_not() -> None:
    state = ProducerState()
    state.update(header(0, producer_id=1), 0, timestamp=1000)
    state.update(header(0, producer_id=2), 1, timestamp=2000)
    state.expire(before_ms=2000)
    assert len(state) == 1
    assert state.check(header(0, producer_id=2)) is not None
    assert state.check(header(0, producer_id=1)) is None


def test_a_snapshot_answers_retries_of_all_remembered_batches_as_before() -> None:
    sent = [header(number * 2, 2) for number in range(REMEMBERED_BATCHES + 2)]
    sent.append(header(LAST - 1, 5, producer_id=8, epoch=2))
    before = written(*sent)
    after = ProducerState.from_snapshot(before.snapshot())
    assert len(after) == 2
    for each in sent[2:]:
        assert after.check(each) == before.check(each) is not None
    assert refusal(after, sent[1]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for state in (before, after):
        assert state.check(header(3, producer_id=8, epoch=2)) is None


def test_the_snapshot_of_nobody_is_a_snapshot_too() -> None:
    assert len(ProducerState.from_snapshot(ProducerState().snapshot())) == 0


def test_a_damaged_snapshot_is_never_believed() -> None:
    content = written(header(0, 5), header(0, 1, producer_id=8)).snapshot()
    for size in range(len(content)):
        with pytest.raises(ValueError, match="producer snapshot"):
            ProducerState.from_snapshot(content[:size])
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="producer snapshot"):
            ProducerState.from_snapshot(bytes(damaged))


def test_what_was_known_at_an_earlier_end_is_known_again_as_long_as_it_is_remembered() -> None:
    state = ProducerState()
    for number in range(8):
        state.update(read_header(batch(producer=(1, 0, number))), 10 * number, 100 + number)
    state.update(read_header(batch(producer=(2, 0, 0))), 15, 50)
    earlier = state.below(61)
    assert earlier is not None
    entries = dict(earlier.entries())
    assert [kept.base_offset for kept in entries[1].batches] == [30, 40, 50, 60]
    assert (entries[1].last_timestamp, entries[2].last_timestamp) == (106, 50)
    assert state.below(31) is not None
    assert state.below(30) is None, "the batches before are forgotten, not absent"
    assert state.below(15) is None
    entries[1].batches.clear()
    assert [kept.base_offset for kept in dict(state.entries())[1].batches] == [30, 40, 50, 60, 70]


MOST = 160


def crowd(count: int) -> ProducerState:
    """This many producers with one batch each; the first three wrote another one at the end."""
    state = ProducerState()
    for number in range(count):
        state.update(header(0, producer_id=number), number, timestamp=1000)
    for number in range(3):
        state.update(header(1, producer_id=number), count + number, timestamp=1000)
    return state


def test_of_too_many_producers_those_go_that_were_silent_for_longest() -> None:
    state = crowd(MOST)
    assert not state.bound(MOST)
    assert len(state) == MOST
    state = crowd(MOST + 5)
    assert state.bound(MOST)
    # Some more than need be, so that it is not done again for each newcomer.
    assert len(state) == MOST - MOST // 16
    assert [number for number, _ in state.entries()] == [0, 1, 2, *range(18, MOST + 5)]


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    state = crowd(MOST + 5)
    open_ones = [3, 4, 50]
    for number, entry in state.entries():
        if number in open_ones:
            entry.transaction_start = 0
    copied = ProducerState.from_snapshot(state.snapshot())
    for each in (state, copied):
        each.bound(10)
        each.expire(1 << 60)
        assert [number for number, _ in each.entries()] == open_ones
    copied.end_transaction(Marker(50, 0, is_commit=True, coordinator_epoch=0), MOST + 10, 1000)
    copied.expire(1 << 60)
    assert [number for number, _ in copied.entries()] == [3, 4]


def test_a_log_remembers_no_more_producers_than_its_configuration_says_and_no_more_after_a_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = Logs(str(tmp_path / "orders-0")).configure(max_producers=MOST)
    log = logs.open()
    for number in range(4 * MOST):
        append(log, batch(producer=(number, 0, 0)))
        assert len(log.producers) <= MOST
    assert sum("more than 160 idempotent producers" in line for line in caplog.messages) == 1
    # Who is still remembered is still known by its sequences.
    assert append(log, batch(producer=(4 * MOST - 1, 0, 0))).is_duplicate
    reopened = logs.open()
    assert 0 < len(reopened.producers) <= MOST
    assert append(reopened, batch(producer=(4 * MOST - 1, 0, 0))).is_duplicate


def test_a_producer_that_was_forgotten_may_go_on_after_it_was_told_to_send_again(tmp_path: Path) -> None:
    log = Logs(str(tmp_path / "orders-0")).configure(max_producers=10).open()
    for number in range(30):
        append(log, batch(producer=(number, 0, 0)))
    again = batch(producer=(0, 0, 1))
    with pytest.raises(KafkaError) as refused:
        append(log, again)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not append(log, again).is_duplicate
