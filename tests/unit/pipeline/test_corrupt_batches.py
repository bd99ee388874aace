"""Undecodable batches among others: each is named or passed on, and everything around it is decoded."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.pipeline.archiving.task import COLUMNS as ARCHIVED_COLUMNS
from tailrace.pipeline.arrow import decoding
from tailrace.pipeline.arrow.decoding import RecordDecoder
from tailrace.pipeline.failures import CorruptBatchError, CorruptRecordsError
from tailrace.pipeline.source.corrupt_batches import CorruptBatches
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import COLUMNS, HEADERS
from tailrace.records.batch import assign_offset, read_header
from tailrace.records.compression import Compression
from tests.support.batches.poison import DAMAGES, poison_batch, sound_batch, with_body

EVERYTHING = OffsetRange("orders", 3, 0, 1 << 40)


def log_of(*batches: bytes) -> bytearray:
    """Batches one after the other, with the offsets that a broker gives them."""
    log = bytearray()
    offset = 0
    for batch in batches:
        placed = bytearray(batch)
        assign_offset(placed, offset, 5)
        log += placed
        offset = read_header(placed).next_offset
    return log


def decoded(log: bytearray, wanted: OffsetRange = EVERYTHING) -> tuple[list[int], list[bytes], list[object]]:
    """The offsets of records, the bytes of batches that could not be decoded, and both in the order they came in."""
    order: list[object] = []
    aside: list[bytes] = []

    def take(header: object, data: memoryview, reason: str) -> None:
        assert reason
        aside.append(bytes(data))
        order.append(bytes(data))

    decoder = RecordDecoder(wanted, ARCHIVED_COLUMNS, RecordFilter(), RECORD_SCHEMA, take)
    offsets: list[int] = []
    for rows in decoder.decode(log, 0, len(log)):
        offsets += rows.column("offset").to_pylist()
        order += rows.column("offset").to_pylist()
    return offsets, aside, order


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_around_a_corrupt_batch_is_decoded(damage: str) -> None:
    before, corrupt, behind = sound_batch([b"a"] * 3), DAMAGES[damage](), sound_batch([b"b"] * 3, Compression.ZSTD)
    log = log_of(before, corrupt, behind)
    end = 3 + read_header(corrupt).record_count
    offsets, aside, order = decoded(log)
    assert offsets == [0, 1, 2, end, end + 1, end + 2]
    assert [batch[21:] for batch in aside] == [corrupt[21:]]
    assert order == [0, 1, 2, *aside, end, end + 1, end + 2]


def test_many_corrupt_batches_among_many_others_are_each_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 2000)
    random = Random(7)
    damages = list(DAMAGES.values())
    batches: list[bytes] = []
    for number in range(300):
        is_sound = random.random() < 0.8
        batches.append(
            sound_batch([b"v%d" % number], random.choice(list(Compression))) if is_sound else random.choice(damages)()
        )
    sound: list[int] = []
    offset = 0
    for batch in batches:
        count = read_header(batch).record_count
        if batch not in [damage() for damage in damages]:
            sound.append(offset)
        offset += count
    offsets, aside, _ = decoded(log_of(*batches))
    assert offsets == sound
    assert len(aside) == 300 - len(sound) > 30


def test_by_default_the_batch_is_named_and_what_to_do() -> None:
    log = log_of(sound_batch([b"a"] * 3), poison_batch([b"b"] * 4), sound_batch([b"c"]))
    decoder = RecordDecoder(EVERYTHING, COLUMNS, RecordFilter())
    with pytest.raises(CorruptBatchError) as caught:
        list(decoder.decode(log, 0, len(log)))
    message = str(caught.value)
    assert message.startswith("the batch at offsets 3 to 6 of orders-3 cannot be decoded: Cannot decompress records: ")
    assert message.endswith(
        "To skip such batches, set the option failOnCorruptBatch=false (tailrace sql and replay: --skip-corrupt)"
    )


def test_damage_in_columns_that_a_query_does_not_read_goes_unnoticed() -> None:
    log = log_of(sound_batch([b"a"] * 3), DAMAGES["a header without a name"](), sound_batch([b"c"]))
    wanted = tuple(column for column in COLUMNS if column != HEADERS)
    (rows,) = RecordDecoder(EVERYTHING, wanted, RecordFilter()).decode(log, 0, len(log))
    assert rows.column("value").to_pylist() == [b"a", b"a", b"a", b"first", b"other", b"c"]
    with pytest.raises(CorruptBatchError, match="the batch at offsets 3 to 4 of orders-3"):
        list(RecordDecoder(EVERYTHING, COLUMNS, RecordFilter()).decode(log, 0, len(log)))


def test_a_batch_with_a_wrong_crc_is_damaged_and_never_set_aside() -> None:
    log = log_of(sound_batch([b"a"] * 3))
    log[-1] ^= 1
    with pytest.raises(CorruptRecordsError, match="CRC"):
        decoded(log)


def test_a_batch_whose_first_record_is_below_its_first_offset_is_corrupt() -> None:
    """Its records would be taken for those of the batch before it."""
    body = bytearray(sound_batch([b"first", b"other"])[61:])
    body[3], body[30 + 3] = 5, 0  # offset deltas -3 and 0
    corrupt = bytes(sound_batch([b"first", b"other"])[:61]) + bytes(body)
    log = log_of(sound_batch([b"a"] * 3), with_body(corrupt, bytes(body)))
    offsets, aside, _ = decoded(log)
    assert offsets == [0, 1, 2]
    assert len(aside) == 1


def test_what_is_skipped_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    skipped = CorruptBatches(OffsetRange("orders", 3, 5, 100), fail=False)
    skipped.say()
    for first in range(3, 103, 10):
        batch = bytearray(poison_batch([b"x"] * 4))
        assign_offset(batch, first, 0)
        skipped.take(read_header(batch), memoryview(batch), "why")
    skipped.say()
    (record,) = caplog.records
    assert record.getMessage() == (
        "orders-3: skipped 10 batches of 38 offsets that cannot be decoded, at offsets 5 to 6, 13 to 16, 23 to 26, "
        "33 to 36, 43 to 46, … (why); continuing because of failOnCorruptBatch=false"
    )
