"""The rate of a replay, on a clock that only moves when told to."""

from __future__ import annotations

import random

import pytest

from tailrace.pipeline.replay.rate_limit import BURST_SECONDS, RateLimit

MOST = 200_000


def replay(limit: RateLimit, total: int, keeps: float, seed: int) -> list[tuple[float, int]]:
    """Read this many offsets through a filter that keeps a part; return the start and size of each batch."""
    chance = random.Random(seed)
    now, left = 1000.0, total
    batches = []
    while left:
        now += limit.pause_seconds(now)
        taken = min(left, limit.offsets(MOST))
        written = sum(chance.random() < keeps for _ in range(taken))
        batches.append((now, written))
        left -= taken
        limit.wrote(written, now)
        now += chance.random() * 3
    return batches


@pytest.mark.parametrize("rate", [1, 7, 1000, 50_000])
@pytest.mark.parametrize("keeps", [1.0, 0.5, 0.01])
def test_between_any_two_batches_there_is_the_time_that_their_records_take(rate: int, keeps: float) -> None:
    print(f"seed {rate}")
    batches = replay(RateLimit(rate), min(rate * 30, MOST), keeps, seed=rate)
    for first in range(len(batches)):
        written = 0
        for begins, records in batches[first:]:
            assert written <= (begins - batches[first][0]) * rate + 1e-6
            written += records


def test_a_batch_is_worth_two_seconds_and_more_offsets_where_few_are_kept() -> None:
    limit = RateLimit(100)
    assert limit.offsets(MOST) == 100 * BURST_SECONDS
    assert limit.offsets(50) == 50
    for _ in range(3):
        limit.wrote(0, 0.0)
    assert limit.offsets(MOST) == 800 * BURST_SECONDS
    # Now most are kept, and batches are small again.
    limit.wrote(1600, 0.0)
    assert limit.offsets(MOST) == 100 * BURST_SECONDS
    assert limit.pause_seconds(0.0) == 16.0


def test_what_was_not_used_is_not_saved_up() -> None:
    limit = RateLimit(10)
    limit.wrote(10, 0.0)
    assert limit.pause_seconds(100.0) == 0.0
    limit.wrote(10, 100.0)
    assert limit.pause_seconds(100.0) == 1.0
    limit.wrote(10, 100.5)
    assert limit.pause_seconds(100.5) == 1.5


def test_without_a_rate_nothing_waits() -> None:
    limit = RateLimit(None)
    limit.wrote(10**9, 0.0)
    assert (limit.offsets(MOST), limit.pause_seconds(0.0)) == (MOST, 0.0)
