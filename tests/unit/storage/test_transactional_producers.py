"""Producers with transactions: what a partition refuses them, and what it remembers of them."""

from __future__ import annotations

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_OFFSET
from tailrace.records.batch import BatchHeader, read_header
from tailrace.records.markers import Marker
from tailrace.storage.producer_state import ProducerState
from tests.unit.storage.logs import batch
from tests.unit.storage.transactions import transactional

PRODUCER = 7
LARGEST_EPOCH = 2**15 - 1


class Written:
    """A state, and the offset of the next batch."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.offset = 0

    def data(self, sequence: int = -1, epoch: int = 0, *, plain: bool = False) -> BatchHeader:
        header = header_of(sequence, epoch, plain=plain)
        if sequence >= 0:
            assert self.state.check(header) is None
        else:
            self.state.check_unsequenced(header)
        self.state.update(header, self.offset, timestamp=1000 + self.offset)
        self.offset += 1
        return header

    def end(self, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0, *, commit: bool = True) -> object:
        marker = Marker(PRODUCER, epoch, commit, coordinator_epoch, version)
        self.state.check_marker(marker)
        self.offset += 1
        return self.state.end_transaction(marker, self.offset - 1, 1000 + self.offset)

    @property
    def start(self) -> int:
        return dict(self.state.entries())[PRODUCER].transaction_start


def header_of(sequence: int = -1, epoch: int = 0, *, plain: bool = False) -> BatchHeader:
    data = batch(producer=(PRODUCER, epoch, sequence)) if plain else transactional(PRODUCER, sequence, epoch=epoch)
    return read_header(data)


def refusal(call: object, *arguments: object, **fields: object) -> ErrorCode:
    assert callable(call)
    with pytest.raises(KafkaError) as caught:
        call(*arguments, **fields)
    return caught.value.code


@pytest.mark.parametrize("sequence", [0, -1])
def test_a_transaction_is_open_from_its_first_batch_to_its_marker(sequence: int) -> None:
    written = Written()
    written.data(sequence)
    written.data(-1 if sequence < 0 else 1)
    assert (written.start, written.state.transactions.first_open) == (0, 0)
    assert written.end() is None
    assert (written.start, len(written.state.transactions)) == (NO_OFFSET, 0)
    written.data(-1 if sequence < 0 else 2)
    assert written.start == 3, "sequences go on in the same epoch"
    assert written.end(commit=False) == (PRODUCER, 3, 4, 5)


def test_a_batch_outside_of_an_open_transaction_is_refused() -> None:
    written = Written()
    written.data(0)
    assert refusal(written.data, 1, plain=True) is ErrorCode.INVALID_TXN_STATE
    assert refusal(written.data, 0, epoch=1, plain=True) is ErrorCode.INVALID_TXN_STATE
    written.data(1)
    written.end()
    written.data(2, plain=True)
    written.data(3)
    assert written.start == 4


def test_a_retry_is_answered_whatever_is_open_by_now() -> None:
    written = Written()
    plain = written.data(0, plain=True)
    written.data(1)
    assert written.state.check(plain) is not None


def test_the_epoch_of_a_marker_fences_the_producer_and_restarts_sequences() -> None:
    written = Written()
    written.data(0)
    written.data(1)
    assert written.end(epoch=1, commit=False) == (PRODUCER, 0, 2, 3)
    assert refusal(written.data, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(written.data) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(written.data, 2, epoch=2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    written.data(0, epoch=1)
    assert written.start == 3


def test_a_new_epoch_in_an_open_transaction_continues_it() -> None:
    written = Written()
    written.data(0)
    written.data(0, epoch=1)
    assert written.start == 0
    assert written.end(epoch=1, commit=False) == (PRODUCER, 0, 2, 3)


def test_a_marker_without_records_fences_too_and_may_be_repeated() -> None:
    written = Written()
    assert written.end(epoch=3, coordinator_epoch=5) is None
    assert written.end(epoch=3, coordinator_epoch=5, commit=False) is None
    assert refusal(written.end, epoch=2, coordinator_epoch=5) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(written.end, epoch=3, coordinator_epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refusal(written.data, 0, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    written.data(0, epoch=3)


def test_from_version_2_on_a_marker_of_the_same_epoch_ends_an_earlier_transaction() -> None:
    written = Written()
    written.data(0, epoch=3)
    assert refusal(written.end, epoch=3, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    written.end(epoch=4, version=2)
    written.end(epoch=4, version=2)
    written.data(0, epoch=4)
    assert refusal(written.end, epoch=4, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    written.end(epoch=4, version=1)


def test_the_largest_epoch_can_still_be_ended() -> None:
    written = Written()
    written.data(0, epoch=LARGEST_EPOCH)
    written.end(epoch=LARGEST_EPOCH, version=2)
    assert written.start == NO_OFFSET


def test_a_producer_of_which_only_a_marker_is_known_may_go_on_after_it_was_told_to_send_again() -> None:
    written = Written()
    written.end(epoch=3)
    assert refusal(written.data, 40, epoch=3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refusal(written.data, 50, epoch=3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    written.data(40, epoch=3)


def test_a_snapshot_has_what_concerns_transactions() -> None:
    written = Written()
    written.data(0)
    written.end(coordinator_epoch=4)
    written.data(1)
    other = read_header(transactional(8))
    written.state.update(other, 3, timestamp=50)
    written.state.end_transaction(Marker(9, 6, is_commit=True, coordinator_epoch=2), 4, 60)
    read = ProducerState.from_snapshot(written.state.snapshot(), 5)
    remembered = [
        (number, each.epoch, each.coordinator_epoch, each.transaction_start, each.last_timestamp, len(each.batches))
        for number, each in read.entries()
    ]
    assert remembered == [(7, 0, 4, 2, 1002, 2), (8, 0, -1, 3, 50, 0), (9, 6, 2, -1, 60, 0)]
    assert (len(read.transactions), read.transactions.first_open) == (2, 2)
    assert read.snapshot() == written.state.snapshot()


def test_what_came_before_a_marker_is_not_known_any_more() -> None:
    written = Written()
    for number in range(3):
        written.data(number)
    written.end()
    written.data(3)
    later = written.state.below(5)
    assert later is not None
    assert later.transactions.first_open == 4
    earlier = written.state.below(4)
    assert earlier is not None
    assert (dict(earlier.entries())[PRODUCER].transaction_start, len(earlier.transactions)) == (NO_OFFSET, 0)
    assert written.state.below(3) is None
    assert ProducerState.from_snapshot(written.state.snapshot(), 5).below(4) is None


def test_a_replica_that_starts_later_learns_open_transactions_and_fenced_epochs() -> None:
    written = Written()
    for number in range(9):
        written.data(number)
    written.state.end_transaction(Marker(9, 6, is_commit=True, coordinator_epoch=2), 9, 60)
    written.state.end_transaction(Marker(10, 1, is_commit=True, coordinator_epoch=2), 20, 60)
    past = ProducerState.from_snapshot(written.state.before(11).snapshot())
    assert [(number, each.epoch, each.transaction_start) for number, each in past.entries()] == [(7, 0, 0), (9, 6, -1)]
    only_open = ProducerState.from_snapshot(written.state.before(2).snapshot())
    assert [(number, each.transaction_start) for number, each in only_open.entries()] == [(7, 0)]
    assert only_open.transactions.first_open == 0


def test_an_open_transaction_outlives_expiry_and_the_bound() -> None:
    written = Written()
    written.data(0)
    for number in range(100):
        written.state.update(read_header(batch(producer=(1000 + number, 0, 0))), 1 + number, timestamp=1 << 50)
    written.state.expire(1 << 60)
    assert [number for number, _ in written.state.entries()] == [PRODUCER]
    for number in range(100):
        written.state.update(read_header(batch(producer=(1000 + number, 0, 0))), 1 + number, timestamp=1 << 50)
    written.state.bound(10)
    assert written.start == 0
    written.end()
    written.state.expire(1 << 60)
    assert len(written.state) == 0


def test_open_transactions_take_no_room_from_producers_whose_transaction_has_ended() -> None:
    written = Written()
    for number in range(100):
        header = read_header(transactional(1000 + number, 0))
        assert written.state.update(header, number, timestamp=number)
        assert not written.state.bound(10)
    for number in range(10):
        written.state.end_transaction(Marker(1000 + number, 1, is_commit=True, coordinator_epoch=2), 100 + number, 200)
        # Without them, a late batch would begin a transaction that nobody ends.
        assert not written.state.bound(10)
    assert len(written.state) == 100
    with pytest.raises(KafkaError):
        written.state.check(read_header(transactional(1000, 1)))
    written.state.end_transaction(Marker(1010, 1, is_commit=True, coordinator_epoch=2), 110, 200)
    assert written.state.bound(10)
    assert written.state.find(1000) is None
    assert len(written.state.transactions) == 89
