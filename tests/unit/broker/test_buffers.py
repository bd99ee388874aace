"""Large buffers are used again, within a bound."""

from __future__ import annotations

from tailrace.broker.network.buffers import _KEPT_BYTES, BufferPool


def test_a_buffer_given_back_is_used_again_for_the_same_size() -> None:
    pool = BufferPool()
    assert pool.take_spare(1_000_000) is None
    buffer = bytearray(1 << 20)
    pool.give(buffer)
    assert pool.take_spare(100_000) is None
    assert pool.take_spare(900_000) is buffer
    assert pool.take_spare(900_000) is None


def test_no_more_than_the_bound_is_kept() -> None:
    pool = BufferPool()
    for _ in range(40):
        pool.give(bytearray(1 << 20))
    kept = 0
    while pool.take_spare(1 << 20) is not None:
        kept += 1
    assert kept == _KEPT_BYTES >> 20


def test_small_huge_and_odd_buffers_are_left_to_the_allocator() -> None:
    pool = BufferPool()
    for size in (1 << 10, 1 << 23, 100_000):
        pool.give(bytearray(size))
        assert pool.take_spare(size) is None
