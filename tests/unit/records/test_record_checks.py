"""Checks of a batch's records without decoding them: keys, times, and whether they match the header."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.batch import HEADER_BYTES, BatchHeader, read_header
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.records.record_checks import MAX_NAMED_RECORDS, RecordScan, refuse_keyless, refuse_times
from tests.unit.records.strategies import quick

NOW = 1_700_000_000_000

records = st.builds(
    NewRecord,
    value=st.none() | st.binary(max_size=300),
    key=st.none() | st.binary(max_size=200),
    timestamp=st.integers(-1, 5) | st.integers(NOW - 10**6, NOW + 10**6),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
)


def batch_of(given: list[NewRecord]) -> tuple[bytes, BatchHeader]:
    batch = build_batch(given)
    return bytes(batch[HEADER_BYTES:]), read_header(batch)


def scanned(body: bytes, header: BatchHeader, bounds: tuple[int, int] | None = None, step: int = 7) -> RecordScan:
    scan = RecordScan(body, header, bounds)
    while not scan.advance(step):
        pass
    return scan


@quick
@given(given=st.lists(records, min_size=1, max_size=300), step=st.integers(1, 400))
def test_records_without_a_key_are_found(given: list[NewRecord], step: int) -> None:
    body, header = batch_of(given)
    expected = [index for index, record in enumerate(given) if record.key is None]
    assert scanned(body, header, step=step).keyless == expected
    assert scanned(body, header, (0, NOW), step=step).keyless == expected


@quick
@given(given=st.lists(records, min_size=1, max_size=50), bounds=st.tuples(st.integers(0, NOW), st.integers(0, 2 * NOW)))
def test_times_outside_of_the_bounds_are_found_and_no_time_is_never_outside(
    given: list[NewRecord], bounds: tuple[int, int]
) -> None:
    body, header = batch_of(given)
    assert scanned(body, header, bounds).outside == [
        (index, record.timestamp)
        for index, record in enumerate(given)
        if record.timestamp != -1 and not bounds[0] <= record.timestamp <= bounds[1]
    ]


@pytest.mark.parametrize("bounds", [None, (0, NOW)])
def test_a_body_cut_anywhere_is_refused(bounds: tuple[int, int] | None) -> None:
    body, header = batch_of([NewRecord(b"v" * 70, b"k", timestamp) for timestamp in range(5)])
    for cut in range(len(body)):
        with pytest.raises(KafkaError, match=r"premature EOF|not as long") as caught:
            scanned(body[:cut], header, bounds)
        assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("bounds", [None, (0, NOW)])
def test_more_records_than_the_batch_says_are_refused(bounds: tuple[int, int] | None) -> None:
    body, header = batch_of([NewRecord(b"v", b"k")] * 3)
    with pytest.raises(KafkaError, match="records still remaining") as caught:
        scanned(body, header._replace(record_count=2), bounds)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("bounds", [None, (0, NOW)])
def test_offsets_that_do_not_follow_each_other_are_refused(bounds: tuple[int, int] | None) -> None:
    body, header = batch_of([NewRecord(b"v", b"k")] * 3)
    changed = bytearray(body)
    changed[len(body) // 3 + 3] = 4
    with pytest.raises(KafkaError, match="Record 1 of the batch has an offset delta of 2 and should have 1"):
        scanned(bytes(changed), header, bounds)


@quick
@given(seed=st.integers(0, 2**32), bounds=st.sampled_from([None, (0, NOW)]))
def test_damaged_records_are_refused_or_found_as_a_reader_finds_them(seed: int, bounds: tuple[int, int] | None) -> None:
    random = Random(seed)
    batch = build_batch([NewRecord(random.randbytes(random.randrange(90)), b"k") for _ in range(4)])
    header = read_header(batch)
    for _ in range(random.randint(1, 3)):
        batch[random.randrange(HEADER_BYTES, len(batch))] = random.randrange(256)
    try:
        scan = scanned(bytes(batch[HEADER_BYTES:]), header, bounds)
    except KafkaError as error:
        refused = error.code
    else:
        refused = ErrorCode.NONE
    if refused is not ErrorCode.NONE:
        assert refused is ErrorCode.INVALID_RECORD
        return
    try:
        found = list(iterate_records(batch, header))
    except KafkaError:
        return  # what this does not look at, headers and values, may be wrong
    assert scan.keyless == [index for index, record in enumerate(found) if record.key is None]


def test_refusals_are_in_kafkas_words_and_not_longer_than_useful() -> None:
    refused = refuse_keyless(TopicPartition("orders", 3), list(range(5000)))
    why = "Compacted topic cannot accept message without key in topic partition orders-3"
    assert refused.code is ErrorCode.INVALID_RECORD
    assert refused.record_errors[1] == (1, why)
    assert len(refused.record_errors) == MAX_NAMED_RECORDS
    assert refused.message == (
        "One or more records have been rejected due to 5000 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=0, message='{why}'), RecordError(batchIndex=1, message='{why}'), "
        f"RecordError(batchIndex=2, message='{why}')]"
    )
    refused = refuse_times([(4, 99)], (100, 200))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert refused.message == "One or more records have been rejected due to invalid timestamp"
    assert refused.record_errors == [
        (4, "Timestamp 99 of message with offset 4 is out of range. The timestamp should be within [100, 200]")
    ]
