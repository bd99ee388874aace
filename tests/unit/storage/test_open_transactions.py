"""The transactions that hold back the last stable offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.storage.open_transactions import _MOST_ENDED, UNBOUNDED, OpenTransactions


def test_the_first_open_transaction_counts() -> None:
    state = OpenTransactions()
    assert state.is_idle
    assert state.first_unstable(100) == UNBOUNDED
    state.begin(1, 10)
    state.begin(2, 20)
    assert (len(state), state.first_unstable(100)) == (2, 10)
    assert state.end(1, 30) == 10
    assert state.first_unstable(31) == 20
    assert state.end(2, 40) == 20
    assert state.first_unstable(41) == UNBOUNDED
    assert state.is_idle


def test_an_end_counts_once_it_is_committed() -> None:
    state = OpenTransactions()
    state.begin(1, 10)
    state.begin(2, 20)
    state.end(2, 30)
    state.end(1, 31)
    assert state.first_unstable(31) == 10, "the marker of the first one is not committed yet"
    assert not state.is_idle
    assert state.first_unstable(32) == UNBOUNDED


def test_the_end_of_nothing_changes_nothing() -> None:
    state = OpenTransactions()
    assert state.end(1, 5) is None
    assert state.is_idle


def test_what_is_not_committed_for_long_takes_bounded_memory_and_is_never_taken_for_stable() -> None:
    state = OpenTransactions()
    for number in range(5 * _MOST_ENDED):
        state.begin(number, 2 * number)
        state.end(number, 2 * number + 1)
    assert len(state._ended) <= _MOST_ENDED + 1
    assert state.first_unstable(0) == 0
    for high_watermark in range(1, 10 * _MOST_ENDED, 997):
        assert state.first_unstable(high_watermark) <= high_watermark - high_watermark % 2
    assert state.first_unstable(10 * _MOST_ENDED) == UNBOUNDED


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60), st.data())
def test_it_equals_a_search_of_all_transactions(steps: list[tuple[int, bool]], data: st.DataObject) -> None:
    state = OpenTransactions()
    running: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    high_watermark = 0
    for offset, (producer_id, ends) in enumerate(steps):
        if ends:
            first = running.pop(producer_id, None)
            assert state.end(producer_id, offset) == first
            if first is not None:
                ended.append((first, offset))
        elif producer_id not in running:
            running[producer_id] = offset
            state.begin(producer_id, offset)
        high_watermark = data.draw(st.integers(high_watermark, offset + 1))
        unstable = [*running.values(), *(first for first, marker in ended if marker >= high_watermark)]
        assert state.first_unstable(high_watermark) == min(unstable, default=UNBOUNDED)
