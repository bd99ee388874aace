"""Searches by time: what answers them, and what is never an answer."""

from __future__ import annotations

import pytest

from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch
from tailrace.storage.timestamp_search import NOT_FOUND, TimestampedOffset
from tests.support.batches.time_search import offset_for_timestamp, offset_of_max_timestamp
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, timed


@pytest.mark.parametrize("segment_bytes", [1 << 30, 2 * BATCH_BYTES])
def test_a_time_is_answered_with_the_first_record_not_before_it(logs: Logs, segment_bytes: int) -> None:
    log = timed(logs.configure(segment_bytes=segment_bytes), 10, 30, 20, 50, 40)
    answers = {at: offset_for_timestamp(log, NOW_MS + at, 5) for at in (0, 10, 11, 30, 31, 50, 51)}
    assert {at: found.offset for at, found in answers.items()} == {0: 0, 10: 0, 11: 1, 30: 1, 31: 3, 50: 3, 51: -1}
    assert answers[11].timestamp == NOW_MS + 30
    assert answers[51] == NOT_FOUND


def test_a_time_is_found_inside_a_compressed_batch(logs: Logs) -> None:
    log = logs.open()
    records = [NewRecord(b"x", timestamp=NOW_MS + number) for number in range(100)]
    append(log, build_batch(records, compression=Compression.ZSTD))
    assert offset_for_timestamp(log, NOW_MS + 57, 100) == TimestampedOffset(57, NOW_MS + 57)


def test_a_time_is_not_answered_with_records_that_are_given_up_or_not_yet_committed(logs: Logs) -> None:
    log = timed(logs, 10, 20, 30, 40)
    log.advance_start(1)
    assert offset_for_timestamp(log, 0, 4).offset == 1
    assert offset_for_timestamp(log, NOW_MS + 30, 2) == NOT_FOUND


def test_the_largest_timestamp_is_found_wherever_it_is(logs: Logs) -> None:
    log = timed(logs.configure(segment_bytes=2 * BATCH_BYTES), 10, 90, 20, 90, 40)
    assert offset_of_max_timestamp(log, 5) == TimestampedOffset(1, NOW_MS + 90)


def test_an_empty_log_has_no_largest_timestamp(logs: Logs) -> None:
    assert offset_of_max_timestamp(logs.open(), 0) == NOT_FOUND
