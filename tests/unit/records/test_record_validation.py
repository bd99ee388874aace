"""Validation of the records of a produced batch: all that a client could not decode is refused, and nothing else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import HEADER_BYTES, BatchHeader, read_header
from tailrace.records.compression import decompress
from tailrace.records.record import NewRecord, _varint, build_batch, iterate_records
from tailrace.records.record_checks import RecordScan
from tailrace.records.record_validation import RecordValidation
from tests.support.batches.poison import DAMAGES
from tests.unit.records.strategies import quick
from tests.unit.records.test_record_checks import NOW, batch_of, records


def validated(body: bytes, header: BatchHeader, step: int = 7, **wanted: bool) -> RecordValidation:
    validation = RecordValidation(body, header, **wanted)
    while not validation.advance(step):
        pass
    return validation


@quick
@given(given=st.lists(records, min_size=1, max_size=300), step=st.integers(1, 400))
def test_records_that_clients_wrote_pass_in_slices_of_any_size(given: list[NewRecord], step: int) -> None:
    body, header = batch_of(given)
    keyless = [index for index, record in enumerate(given) if record.key is None]
    assert validated(body, header, step, needs_keys=True).keyless == keyless
    assert validated(body, header, step).keyless == []


@quick
@given(given=st.lists(records, min_size=1, max_size=50))
def test_times_outside_of_the_bounds_are_found_on_the_same_walk(given: list[NewRecord]) -> None:
    body, header = batch_of(given)
    validation = RecordValidation(body, header, (5, NOW))
    while not validation.advance(3):
        pass
    scan = RecordScan(body, header, (5, NOW))
    scan.advance(len(given))
    assert validation.outside == scan.outside


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_kind_of_damage_is_refused(damage: str) -> None:
    batch = DAMAGES[damage]()
    header = read_header(batch)
    with pytest.raises(KafkaError) as refused:
        validated(bytes(decompress(header.compression, memoryview(batch)[HEADER_BYTES:])), header)
    assert refused.value.code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_a_batch_passes_if_and_only_if_it_can_be_decoded() -> None:
    outcomes = {_outcome(Random(seed)) for seed in range(2000)}
    assert outcomes == {(True, True), (False, False)}


def _outcome(random: Random) -> tuple[bool, bool]:
    """Whether a batch with a damaged byte passes, and whether it can be decoded."""
    given = [
        NewRecord(random.randbytes(random.randrange(5)), None, 0, (("h", None), ("other", b"x")) if number % 2 else ())
        for number in range(random.randrange(1, 6))
    ]
    body, header = batch_of(given)
    damaged = bytearray(body)
    damaged[random.randrange(len(damaged))] = random.randrange(256)
    batch = bytes(build_batch(given))[:HEADER_BYTES] + bytes(damaged)
    try:
        decoded = list(iterate_records(batch, header))
        can_decode = [record.offset for record in decoded] == list(range(len(given)))
    except KafkaError:
        can_decode = False
    try:
        validated(bytes(damaged), header)
    except KafkaError:
        return False, can_decode
    return True, can_decode


def test_a_record_of_very_many_headers_is_checked_in_slices() -> None:
    headers = tuple(("", None) for _ in range(50_000))
    body, header = batch_of([NewRecord(b"value", None, 0, headers), NewRecord(b"next")])
    validation = RecordValidation(body, header)
    slices = 1
    while not validation.advance(1000):
        slices += 1
    assert slices == 51


def test_numbers_longer_than_clients_read_are_refused() -> None:
    """A length of five bytes and more could be told in fewer; Kafka's clients stop at five."""
    header = read_header(build_batch([NewRecord(b"value")]))
    inner = b"\0\0\0\x01" + b"\x8a\x80\x80\x80\x80\x00" + b"value" + b"\0"
    with pytest.raises(KafkaError, match="too long"):
        validated(_varint(len(inner)) + inner, header)


def test_a_time_of_a_megabyte_is_not_read_to_its_end() -> None:
    """A compacted topic looks at keys, and meets the same bytes."""
    header = read_header(build_batch([NewRecord(b"value")]))
    body = _varint(1 << 20) + b"\0" + b"\x80" * (1 << 20)
    for walk in (RecordScan(body, header), RecordValidation(body, header)):
        with pytest.raises(KafkaError, match="too long"):
            walk.advance(1)
