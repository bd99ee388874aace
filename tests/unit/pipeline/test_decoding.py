"""What is decoded to Arrow is what aiokafka reads in the same bytes; damaged bytes are an error and nothing else."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence

import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.archive import header_names
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.pipeline.archiving.task import COLUMNS as ARCHIVED_COLUMNS
from tailrace.pipeline.arrow import decoding
from tailrace.pipeline.arrow.decoding import RecordDecoder
from tailrace.pipeline.arrow.decoding import find_records as find_positions
from tailrace.pipeline.failures import CorruptRecordsError
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import COLUMNS, arrow_schema
from tailrace.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    assign_offset,
    read_header,
    stamp_append_time,
)
from tailrace.records.compression import Compression
from tailrace.records.raw_records import empty_batch, find_records, rebuild_batch, unpack_records
from tailrace.records.record import NewRecord, build_batch

TIMES = st.integers(min_value=-1, max_value=1 << 45)
FIELDS = st.none() | st.binary(max_size=200)
HEADER = st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), st.none() | st.binary(max_size=9))
RECORDS = st.builds(
    NewRecord, value=FIELDS, key=FIELDS, timestamp=TIMES, headers=st.lists(HEADER, max_size=4).map(tuple)
)
BATCHES = st.lists(
    st.tuples(st.lists(RECORDS, min_size=1, max_size=80), st.sampled_from(Compression), st.booleans()),
    min_size=1,
    max_size=4,
)
EVERYTHING = OffsetRange("orders", 3, 0, 1 << 40)
Built = Sequence[tuple[list[NewRecord], Compression, bool]]


def log_of(batches: Built, base_offset: int = 0) -> bytearray:
    """The batches one after the other, as a broker stores and sends them."""
    log = bytearray()
    for records, compression, is_append_time in batches:
        batch = build_batch(records, base_offset=base_offset, compression=compression)
        if is_append_time:
            stamp_append_time(batch, int(compression), 1_700_000_000_000)
        log += batch
        base_offset += len(records)
    return log


def decode(
    data: bytearray,
    wanted: OffsetRange = EVERYTHING,
    *,
    columns: tuple[str, ...] = COLUMNS,
    only: RecordFilter = RecordFilter(),  # noqa: B008
    aborted: Sequence[tuple[int, int]] = (),
) -> list[dict[str, object]]:
    return table_of(data, wanted, columns=columns, only=only, aborted=aborted).to_pylist()


def table_of(
    data: bytearray,
    wanted: OffsetRange = EVERYTHING,
    *,
    columns: tuple[str, ...] = COLUMNS,
    only: RecordFilter = RecordFilter(),  # noqa: B008
    aborted: Sequence[tuple[int, int]] = (),
) -> pa.Table:
    decoder = RecordDecoder(wanted, columns, only)
    # Bytes before and behind, as around the records of an answer.
    batches = list(decoder.decode(bytearray(b"\xff" * 7 + data + b"\xff" * 9), 7, 7 + len(data), aborted))
    table = pa.Table.from_batches(batches, schema=arrow_schema(columns))
    table.validate(full=True)
    return table


def read_by_aiokafka(data: bytearray) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    batches = MemoryRecords(bytes(data))
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        found += [
            {
                "key": record.key,
                "value": record.value,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "timestampType": record.timestamp_type,
                "headers": list(record.headers) or None,
            }
            for record in batch
        ]
    return found


def milliseconds(time: object) -> int:
    value = pa.scalar(time, pa.timestamp("us", tz="UTC")).value
    return int(value) // 1000


def test_a_batch_that_begins_before_what_was_read_already_goes_on_behind_it() -> None:
    records = [NewRecord(value=str(number).encode()) for number in range(20)]
    decoder = RecordDecoder(EVERYTHING, ("offset",), RecordFilter())
    seen = []
    # As from an archive that ends in the middle of a batch, and then from the log that has all of that batch.
    for answer in (log_of([(records[:13], Compression.NONE, False)]), log_of([(records, Compression.NONE, False)])):
        for batch in decoder.decode(answer, 0, len(answer)):
            seen += batch.column(0).to_pylist()
    assert seen == list(range(20))


@settings(max_examples=100)
@given(batches=BATCHES, base_offset=st.integers(min_value=0, max_value=1 << 39))
def test_the_columns_are_what_another_reader_finds(batches: Built, base_offset: int) -> None:
    log = log_of(batches, base_offset)
    rows = decode(log)
    theirs = read_by_aiokafka(log)
    assert [row["topic"] for row in rows] == ["orders"] * len(theirs)
    assert {row["partition"] for row in rows} == {3}
    for row, other in zip(rows, theirs, strict=True):
        headers = row["headers"]
        pairs = headers if headers is None else [(one["key"], one["value"]) for one in headers]  # type: ignore[attr-defined]
        assert (row["key"], row["value"], row["offset"], row["timestampType"], pairs) == (
            other["key"],
            other["value"],
            other["offset"],
            other["timestampType"],
            other["headers"],
        )
        assert milliseconds(row["timestamp"]) == other["timestamp"]


@settings(max_examples=100)
@given(batches=BATCHES, data=st.data())
def test_ranges_that_meet_have_each_record_once(batches: Built, data: st.DataObject) -> None:
    log = log_of(batches)
    count = sum(len(records) for records, _, _ in batches)
    middle = data.draw(st.integers(min_value=0, max_value=count))
    first = decode(log, OffsetRange("orders", 3, 0, middle), columns=("offset",))
    second = decode(log, OffsetRange("orders", 3, middle, count), columns=("offset",))
    assert [row["offset"] for row in first + second] == list(range(count))


@settings(max_examples=50)
@given(batches=BATCHES, columns=st.permutations(COLUMNS).flatmap(lambda names: st.just(tuple(names[:3]))))
def test_chosen_columns_are_the_same_as_in_a_whole_row(batches: Built, columns: tuple[str, ...]) -> None:
    log = log_of(batches)
    assert decode(log, columns=columns) == [{name: row[name] for name in columns} for row in decode(log)]


@settings(max_examples=100)
@given(batches=BATCHES, bounds=st.tuples(TIMES, TIMES))
def test_times_are_filtered_row_by_row(batches: Built, bounds: tuple[int, int]) -> None:
    log = log_of(batches)
    least, greatest = min(bounds), max(bounds)
    only = RecordFilter(min_timestamp_us=least * 1000, max_timestamp_us=greatest * 1000)
    found = [row["offset"] for row in decode(log, only=only)]
    assert found == [row["offset"] for row in decode(log) if least <= milliseconds(row["timestamp"]) <= greatest]


def test_batches_are_put_together_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 1000)
    log = log_of([([NewRecord(bytes(100))] * 10, Compression.NONE, False)] * 9)
    found = list(RecordDecoder(EVERYTHING, ("offset",), RecordFilter()).decode(log, 0, len(log)))
    assert len(found) == 9
    assert pa.Table.from_batches(found).column("offset").to_pylist() == list(range(90))


def test_compressed_batches_may_follow_plain_ones_and_the_other_way_round() -> None:
    records = [NewRecord(b"value %d" % number, b"key") for number in range(5)]
    codecs = (Compression.NONE, Compression.LZ4, Compression.NONE, Compression.ZSTD)
    rows = decode(log_of([(records, codec, False) for codec in codecs]))
    assert [row["value"] for row in rows] == [record.value for record in records] * 4
    assert {row["key"] for row in rows} == {b"key"}


def test_gaps_that_compaction_leaves_are_no_error() -> None:
    whole = build_batch([NewRecord(b"%d" % number, b"key") for number in range(10)], base_offset=100)
    header = read_header(whole)
    body = unpack_records(whole, header, 1 << 20)
    kept = [record for record in find_records(body, header) if record.offset_delta in (0, 4, 7)]
    log = rebuild_batch(header, body, kept) + empty_batch(
        read_header(build_batch([NewRecord(b"")] * 5, base_offset=110))
    )
    decoder = RecordDecoder(OffsetRange("orders", 3, 100, 115), ("offset", "value"), RecordFilter())
    (found,) = decoder.decode(log, 0, len(log))
    assert found.to_pydict() == {"offset": [100, 104, 107], "value": [b"0", b"4", b"7"]}
    assert decoder.next_offset == 115


def marker(producer: int, offset: int, *, commit: bool) -> bytearray:
    record = NewRecord(struct.pack(">hi", 0, 0), key=struct.pack(">hh", 0, int(commit)))
    return build_batch(
        [record],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
    )


def transactional(producer: int, offset: int, value: bytes) -> bytearray:
    return build_batch(
        [NewRecord(value)],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )


def test_control_records_are_skipped() -> None:
    log = transactional(7, 0, b"one") + marker(7, 1, commit=True) + transactional(7, 2, b"two")
    assert [(row["offset"], row["value"]) for row in decode(log)] == [(0, b"one"), (2, b"two")]


def test_records_of_aborted_transactions_are_skipped() -> None:
    log = (
        transactional(7, 0, b"aborted")
        + transactional(8, 1, b"of another producer")
        + marker(7, 2, commit=False)
        + transactional(7, 3, b"of a later transaction")
        + marker(7, 4, commit=True)
        + build_batch([NewRecord(b"of none")], base_offset=5)
    )
    assert [row["offset"] for row in decode(log, aborted=[(7, 0)])] == [1, 3, 5]


def test_names_of_headers_that_are_no_text_do_not_make_a_topic_unreadable() -> None:
    batch = build_batch([NewRecord(b"value", headers=(("name", b"content"),))])
    batch = bytearray(bytes(batch).replace(b"name", b"na\xffe"))
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    assert decode(batch)[0]["headers"] == [{"key": "na\ufffde", "value": b"content"}]


def test_a_batch_that_is_cut_off_at_the_end_is_left_for_the_next_fetch() -> None:
    log = log_of([([NewRecord(b"whole")], Compression.NONE, False)] * 2)
    assert [row["offset"] for row in decode(log[:-1])] == [0]
    assert decode(log[:30]) == []


def test_a_flipped_bit_is_found_by_the_crc() -> None:
    log = log_of([([NewRecord(b"value")], Compression.NONE, False)])
    log[-3] ^= 4
    with pytest.raises(CorruptRecordsError, match=r"records of orders-3 .* CRC of the batch at offset 0"):
        decode(log)


@settings(max_examples=250)
@given(
    records=st.lists(RECORDS, min_size=1, max_size=8),
    damage=st.lists(st.tuples(st.integers(min_value=21, max_value=400), st.integers(0, 255)), min_size=1, max_size=4),
    columns=st.sampled_from([COLUMNS, ("offset",), ("key",), ("value", "timestamp")]),
)
def test_records_that_lie_are_an_error_or_rows_and_never_a_crash(
    records: list[NewRecord], damage: list[tuple[int, int]], columns: tuple[str, ...]
) -> None:
    batch = build_batch(records)
    for position, byte in damage:
        if position < len(batch):
            batch[position] = byte
    # The CRC is valid, so the producer sent exactly these bytes.
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    try:
        table = table_of(batch, columns=columns)
    except CorruptRecordsError:
        return
    assert table.num_rows <= read_header(batch).record_count


@settings(max_examples=100)
@given(runs=st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 90)), min_size=1, max_size=6))
def test_records_of_one_size_are_found_like_others(runs: list[tuple[int, int]]) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    batch = build_batch([NewRecord(bytes(size)) for size in sizes])
    found: list[int] = []
    find_positions(batch, HEADER_BYTES, len(batch), len(sizes), found)
    assert found == [HEADER_BYTES + one.start for one in find_records(bytes(batch[HEADER_BYTES:]), read_header(batch))]


def test_a_time_that_no_calendar_has_is_the_farthest_there_is() -> None:
    log = build_batch([NewRecord(b"", timestamp=1 << 62), NewRecord(b"", timestamp=-(1 << 62))])
    times = table_of(log, columns=("timestamp",)).column("timestamp").cast(pa.int64()).to_pylist()
    assert times[0] == -times[1] > 1 << 62


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = build_batch([NewRecord(b"", timestamp=5), NewRecord(b"", timestamp=9)])
    stamp_append_time(batch, 0, 1_700_000_000_000)
    rows = decode(batch)
    assert [milliseconds(row["timestamp"]) for row in rows] == [1_700_000_000_000] * 2
    assert [row["timestampType"] for row in rows] == [1, 1]
    assert read_header(batch).attributes & LOG_APPEND_TIME_BIT


def archived_table(data: bytearray, wanted: OffsetRange = EVERYTHING) -> pa.Table:
    decoder = RecordDecoder(wanted, ARCHIVED_COLUMNS, RecordFilter(), RECORD_SCHEMA)
    table = pa.Table.from_batches(list(decoder.decode(data, 0, len(data))), schema=RECORD_SCHEMA)
    table.validate()
    return table


@settings(max_examples=100)
@given(batches=BATCHES, epochs=st.lists(st.integers(0, (1 << 31) - 1), min_size=4, max_size=4))
def test_what_is_archived_is_what_another_reader_finds_with_the_epoch_of_each_batch(
    batches: Built, epochs: list[int]
) -> None:
    log = bytearray()
    expected: list[int] = []
    for batch, epoch in zip(batches, epochs, strict=False):
        one = log_of([batch], len(expected))
        assign_offset(one, len(expected), epoch)
        log += one
        expected += [epoch] * len(batch[0])
    table = archived_table(log)
    assert table.column("leader_epoch").to_pylist() == expected
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    for row, time, other in zip(table.drop_columns("timestamp").to_pylist(), times, read_by_aiokafka(log), strict=True):
        pairs = [(one["key"], one["value"]) for one in row["headers"]] or None
        assert (row["key"], row["value"], row["offset"], row["timestamp_type"], time, pairs) == (
            other["key"],
            other["value"],
            other["offset"],
            other["timestampType"],
            other["timestamp"],
            other["headers"],
        )


def test_times_and_names_of_headers_are_archived_as_they_were_sent_whatever_they_are() -> None:
    times = [1 << 62, -(1 << 62), -1]
    records = [NewRecord(b"", timestamp=time, headers=(("name", None),)) for time in times]
    batch = bytearray(bytes(build_batch(records)).replace(b"name", b"na\xffe"))
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    table = archived_table(batch)
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == times
    names = table.column("headers").chunk(0).flatten().flatten()[0]
    # As text, which every reader of Parquet takes, and as the bytes that were sent, for clients.
    assert names.to_pylist() == ["\ufffdbase64:bmH/ZQ=="] * 3
    assert header_names.produced(names).to_pylist() == [b"na\xffe"] * 3


def test_decoding_does_not_import_pandas_which_would_take_longer_than_the_first_rows() -> None:
    program = """
import sys
from tailrace.pipeline.arrow.decoding import RecordDecoder
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import COLUMNS, HEADERS
from tailrace.records.record import NewRecord, build_batch

records = [NewRecord(value=None, key=b"a", headers=(("tag", b"red"),)), NewRecord(value=b"b", key=None)]
data = build_batch(records)
decoder = RecordDecoder(OffsetRange("orders", 3, 0, 9), (*COLUMNS, HEADERS), RecordFilter())
assert [batch.num_rows for batch in decoder.decode(data, 0, len(data))] == [2]
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
