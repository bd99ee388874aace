"""The report of a round, as one line or as one object: what it did, and what is left."""

from __future__ import annotations

from tailrace.pipeline.archiving.round import Round

ROUND = Round(3, 1_200_000, 1_228_800_000, 8, 700_000_000, 6000, 2_400_000, 11.6, {"orders": 7})


def test_a_round_is_one_line() -> None:
    assert ROUND.as_text() == (
        "round 3: 1,200,000 rows to 8 files in 6.0 s, 200,000 rows/s, 204.8 MB/s, lag 2,400,000, caught up in 12 s"
    )
    last = Round(4, 1, 10, 1, 2000, 200, 0, 0.0, {"orders": 8})
    assert last.as_text() == "round 4: 1 row to 1 file in 0.2 s, 5 rows/s, 0.0 MB/s, caught up"
    behind = Round(5, 1, 10, 1, 2000, 200, 5, None, {"orders": 9})
    assert behind.as_text().endswith("lag 5, falling behind")
    assert Round(6, 1, 10, 1, 2000, 200, None, None, {"orders": 9}).as_text().endswith("MB/s, lag unknown")
    aside = Round(7, 1, 10, 1, 2000, 200, 0, 0.0, {"orders": 9}, quarantined_batches=2)
    assert aside.as_text().endswith("MB/s, 2 batches quarantined, caught up")


def test_a_round_is_one_object() -> None:
    assert ROUND.as_json() == {
        "round": 3,
        "rows": 1_200_000,
        "rows_per_second": 200_000.0,
        "record_bytes": 1_228_800_000,
        "mb_per_second": 204.8,
        "files": 8,
        "file_bytes": 700_000_000,
        "duration_ms": 6000,
        "lag": 2_400_000,
        "eta_seconds": 11.6,
        "versions": {"orders": 7},
        "quarantined_batches": 0,
    }
