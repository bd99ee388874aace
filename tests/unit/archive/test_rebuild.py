"""Batches made of archived rows: two client libraries read in them exactly what was archived."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive.parquet import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    RECORD_SCHEMA,
    FileWriter,
    read_footer,
    read_row_groups,
)
from tailrace.archive.rebuild import build_filler, rebuild
from tailrace.records.batch import HEADER_BYTES, iterate_batches
from tailrace.records.compression import Compression
from tests.unit.archive.rows import READERS, TOPIC, TOPIC_ID, Row, read_rows, row, row_lists, to_table
from tests.unit.records.strategies import quick

ALL = 1 << 40


def through_parquet(rows: list[Row], row_group_bytes: int) -> pa.Table:
    """Rows written to a file and read from its bytes again."""
    writer = FileWriter(TOPIC, TOPIC_ID, 0, rows[0].offset, row_group_bytes=row_group_bytes)
    table = to_table(rows)
    half = len(rows) // 2
    writer.write(table.slice(0, half))
    writer.write(table.slice(half))
    file, buffer = writer.finish()
    content = bytes(buffer)
    footer = read_footer(content[-file.footer_bytes :], file)
    records = content[footer.starts[0] : footer.starts[-1]]
    tables = read_row_groups(records, 0, footer.row_groups - 1, footer, file)
    spans = [(table.column("offset")[0].as_py(), table.column("offset")[-1].as_py()) for table in tables]
    assert spans == list(zip(footer.first_offsets, footer.last_offsets, strict=True))
    return pa.concat_tables(tables)


@pytest.mark.parametrize("client", READERS)
@quick
@given(
    rows=row_lists(), row_group_bytes=st.sampled_from((1, 200, 1 << 20)), batch_bytes=st.sampled_from((1, 300, 1 << 20))
)
def test_clients_read_from_rebuilt_batches_what_was_archived(
    client: str, rows: list[Row], row_group_bytes: int, batch_bytes: int
) -> None:
    table = through_parquet(rows, row_group_bytes)
    rebuilt = rebuild(table, ALL, batch_bytes=batch_bytes)
    assert rebuilt.rows == len(rows)
    assert read_rows(rebuilt.data, client) == rows


@quick
@given(
    rows=row_lists(),
    start=st.integers(0, 14),
    max_bytes=st.integers(0, 1000),
    batch_bytes=st.sampled_from((1, 200, 1 << 20)),
)
def test_any_slice_is_rebuilt_within_a_limit_of_bytes_and_has_one_record_at_least(
    rows: list[Row], start: int, max_bytes: int, batch_bytes: int
) -> None:
    start %= len(rows)
    rebuilt = rebuild(to_table(rows).slice(start), max_bytes, batch_bytes=batch_bytes)
    assert read_rows(rebuilt.data, "aiokafka") == rows[start : start + rebuilt.rows]
    assert rebuilt.rows == 1 or len(rebuilt.data) <= max_bytes


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_batches_can_be_compressed(codec: Compression) -> None:
    rows = [row(number, headers=(("a", None),)) for number in range(500)]
    rebuilt = rebuild(to_table(rows), ALL, compression=codec)
    assert read_rows(rebuilt.data, "aiokafka") == rows
    assert len(rebuilt.data) < len(rebuild(to_table(rows), ALL).data)
    assert all(header.compression == codec for _, header in iterate_batches(rebuilt.data))


def test_records_share_a_batch_up_to_its_size_and_a_limit_is_used_well() -> None:
    rows = [row(number, 1000) for number in range(1000)]
    rebuilt = rebuild(to_table(rows), ALL, batch_bytes=100_000)
    sizes = [header.size for _, header in iterate_batches(rebuilt.data)]
    assert all(90_000 < size <= 100_000 + HEADER_BYTES for size in sizes[:-1])
    part = rebuild(to_table(rows), 500_000)
    assert 490_000 < len(part.data) <= 500_000


def test_a_batch_has_one_leader_epoch_one_type_of_time_and_one_append_time() -> None:
    rows = [
        row(0, leader_epoch=1),
        row(1, leader_epoch=1),
        row(2, leader_epoch=2),
        row(3, leader_epoch=2, timestamp_type=LOG_APPEND_TIME, timestamp=50),
        row(4, leader_epoch=2, timestamp_type=LOG_APPEND_TIME, timestamp=50),
        row(5, leader_epoch=2, timestamp_type=LOG_APPEND_TIME, timestamp=60),
        row(6, leader_epoch=2, timestamp_type=CREATE_TIME),
    ]
    rebuilt = rebuild(to_table(rows), ALL)
    spans = [(header.base_offset, header.last_offset) for _, header in iterate_batches(rebuilt.data)]
    assert spans == [(0, 1), (2, 2), (3, 4), (5, 5), (6, 6)]
    assert read_rows(rebuilt.data, "kafka-python") == rows


def test_offsets_further_apart_than_a_batch_can_say_are_in_batches_of_their_own() -> None:
    rows = [row(0), row(2**31 - 1), row(2**31)]
    rebuilt = rebuild(to_table(rows), ALL)
    assert [header.base_offset for _, header in iterate_batches(rebuilt.data)] == [0, 2**31]
    assert read_rows(rebuilt.data, "aiokafka") == rows


def test_times_further_apart_than_a_number_of_64_bits_are_kept() -> None:
    rows = [row(0, timestamp=-(2**63)), row(1, timestamp=2**63 - 1), row(2, timestamp=0)]
    assert read_rows(rebuild(to_table(rows), ALL).data, "kafka-python") == rows


def test_header_names_that_are_no_text_keep_their_bytes() -> None:
    table = to_table([row(0, headers=(("name", b"content"),))])
    names = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfe\0\x80")]
    )
    kind = RECORD_SCHEMA.field("headers").type
    item = pa.StructArray.from_arrays([names, pa.array([b"content"])], fields=list(kind.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), item, type=kind)
    writer = FileWriter(TOPIC, TOPIC_ID, 0, 0)
    writer.write(table.set_column(table.num_columns - 1, RECORD_SCHEMA.field("headers"), headers))
    file, buffer = writer.finish()
    footer = read_footer(bytes(buffer)[-file.footer_bytes :], file)
    [read] = read_row_groups(bytes(buffer)[footer.starts[0] : footer.starts[1]], 0, 0, footer, file)
    assert b"\x08\xff\xfe\0\x80\x0econtent" in rebuild(read, ALL).data


def test_no_rows_are_no_batches() -> None:
    assert rebuild(to_table([]), ALL) == (b"", 0)


@pytest.mark.parametrize("client", READERS)
@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 9), (0, 2**31 - 1), (7, 2**33)])
def test_a_filler_leads_clients_behind_a_gap_and_shows_them_nothing(client: str, first: int, last: int) -> None:
    data = build_filler(first, last)
    assert read_rows(data, client) == []
    at = first
    for position, header in iterate_batches(data):
        batch = READERS[client](data[position : position + header.size])
        assert (batch.base_offset, batch.is_control_batch, batch.is_transactional) == (at, True, True)
        # The marker stands at the end: some clients go on behind the last record, and not behind the batch.
        assert [each.offset for each in batch] == [header.last_offset]
        at = header.next_offset
    assert at == last + 1
