"""Large buffers are used again, within a bound."""

from __future__ import annotations

from tailrace.broker.buffers import _KEPT_BYTES, BufferPool


def test_a_buffer_given_back_is_used_again_for_the_same_size() -> None:
    pool = BufferPool()
    buffer = pool.take(1_000_000)
    assert len(buffer) == 1 << 20
    assert pool.take(1_000_000) is not buffer
    pool.give(buffer)
    assert pool.take(900_000) is buffer


def test_no_more_than_the_bound_is_kept() -> None:
    pool = BufferPool()
    taken = [pool.take(1 << 20) for _ in range(40)]
    for buffer in taken:
        pool.give(buffer)
    again = [pool.take(1 << 20) for _ in range(40)]
    assert sum(any(buffer is old for old in taken) for buffer in again) == _KEPT_BYTES >> 20


def test_small_huge_and_odd_buffers_are_left_to_the_allocator() -> None:
    pool = BufferPool()
    assert not pool.takes(1000)
    assert not pool.takes(1 << 30)
    for size in (1000, 1 << 23, 100_000):
        pool.give(bytearray(size))
    assert len(pool.take(100_000)) == 1 << 17
