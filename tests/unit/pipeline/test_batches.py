"""The report of a batch: its lag, its pace, and when it catches up."""

from __future__ import annotations

import pytest

from tailrace.pipeline.jobs.batches import Batch, Pace, batch_of, lag_between, span

PROGRESS = {
    "batchId": 3,
    "numInputRows": 1500,
    "durationMs": {"addBatch": 300, "triggerExecution": 500},
    "stateOperators": [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}],
    "sources": [{"endOffset": {"orders": {"0": 10}}}],
}


def test_a_batch_is_read_from_the_progress_of_its_query() -> None:
    batch = batch_of(PROGRESS, 6000, 0.0, Pace())
    assert batch == Batch(number=3, rows=1500, duration_ms=500, late_rows=3, lag=6000, eta_seconds=2.0)
    assert batch.as_json("totals") == {
        "job": "totals",
        "batch": 3,
        "rows": 1500,
        "rows_per_second": 3000.0,
        "duration_ms": 500,
        "late_rows": 3,
        "lag": 6000,
        "eta_seconds": 2.0,
    }


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        (Batch(3, 1500, 500, 0, 6000, 2.0), "batch 3: 1,500 rows in 0.5 s, 3,000 rows/s, lag 6,000, caught up in 2 s"),
        (Batch(4, 1, 1000, 7, 0, 0.0), "batch 4: 1 row in 1.0 s, 1 rows/s, 7 too late, caught up"),
        (Batch(5, 10, 1000, 0, 9, None), "batch 5: 10 rows in 1.0 s, 10 rows/s, lag 9, falling behind"),
        (Batch(6, 0, 200, 0, None, None), "batch 6: 0 rows in 0.2 s, lag unknown"),
    ],
)
def test_a_batch_is_one_line(batch: Batch, line: str) -> None:
    assert batch.as_text() == line


def test_the_time_to_catch_up_counts_what_is_added_meanwhile() -> None:
    pace = Pace()
    assert pace.eta_seconds(100.0, 1000, rows_per_second=500) == 2.0
    # 100 a second were processed, and 60 a second came: 40 a second are gained.
    assert pace.eta_seconds(110.0, 600, rows_per_second=100) == 15.0
    assert pace.eta_seconds(120.0, 1400, rows_per_second=100) is None
    assert pace.eta_seconds(130.0, 0, rows_per_second=100) == 0.0


def test_the_pace_follows_the_last_batches_only() -> None:
    pace = Pace()
    for second in range(20):
        pace.eta_seconds(float(second), 1000, 10)
    for second in range(9):
        eta = pace.eta_seconds(20.0 + second, 990 - 10 * second, 10)
    assert eta == pytest.approx((990 - 80) / 10)


def test_lag_is_over_all_partitions_that_exist() -> None:
    processed = {("orders", 0): 5, ("orders", 1): 7, ("gone", 0): 3}
    assert lag_between(processed, {("orders", 0): 9, ("orders", 1): 7}) == 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (356400, "4 d 3 h")],
)
def test_a_span_is_told_in_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text
