"""Rows of Arrow columns as record batches: other readers find in them what the columns had."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from tailrace.pipeline.arrow.record_encoding import (
    BYTES,
    RowError,
    Rows,
    as_bytes,
    batch_header,
    encode_headers,
    encode_records,
    varint_sizes,
    varints,
)
from tailrace.pipeline.sink.columns import WriteColumns
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.pipeline.sink.topic_writing import TaskRows
from tailrace.records.batch import has_valid_crc, read_header
from tailrace.records.record import iterate_records

with warnings.catch_warnings():
    # kafka-python loads its schemas through a function that Python 3.11 and 3.12 call deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

contents = st.none() | st.binary(max_size=300)
names = st.text(max_size=5)
header_lists = st.none() | st.lists(st.fixed_dictionaries({"key": names, "value": contents}), max_size=4)
rows_of_records = st.lists(st.tuples(contents, contents, header_lists), min_size=1, max_size=200)


def encoded(rows: Rows, *, first: int = 0, end: int | None = None) -> bytes:
    """A whole batch of some of the rows, as it would be sent."""
    end = len(rows) if end is None else end
    deltas = np.arange(len(rows)) - first
    section = encode_records(rows, deltas).section(first, end)
    header = batch_header(
        section,
        end - first,
        attributes=0,
        timestamp_ms=1_760_000_000_000,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=17,
    )
    return header + bytes(section)


def columns(records: list[tuple[bytes | None, bytes | None, list[dict[str, object]] | None]]) -> Rows:
    keys, values, headers = zip(*records, strict=True)
    return Rows(
        as_bytes(pa.array(values, pa.binary())),
        as_bytes(pa.array(keys, pa.binary())),
        encode_headers(pa.array(headers, HEADERS)),
    )


def wanted(records: list[tuple[bytes | None, bytes | None, list[dict[str, object]] | None]]) -> list[object]:
    return [
        (key, value, tuple((header["key"], header["value"]) for header in headers or ()))
        for key, value, headers in records
    ]


@given(rows_of_records)
def test_our_own_reader_finds_what_the_columns_had(records: list) -> None:
    data = encoded(columns(records))
    header = read_header(data)
    assert has_valid_crc(data, header)
    assert (header.size, header.record_count, header.producer_id, header.base_sequence) == (
        len(data),
        len(records),
        4711,
        17,
    )
    found = list(iterate_records(data, header))
    assert [(each.key, each.value, each.headers) for each in found] == wanted(records)
    assert [each.offset for each in found] == list(range(len(records)))
    assert {each.timestamp for each in found} == {1_760_000_000_000}


@given(rows_of_records)
def test_aiokafka_and_kafka_python_find_what_the_columns_had(records: list) -> None:
    data = encoded(columns(records))
    batch = DefaultRecordBatch(bytearray(data))
    assert batch.validate_crc()
    assert [(each.key, each.value, tuple(each.headers)) for each in batch] == wanted(records)
    other = MemoryRecords(data).next_batch()
    assert other.validate_crc()
    assert [(each.key, each.value, tuple(each.headers)) for each in other] == wanted(records)


@given(rows_of_records, st.data())
def test_a_batch_of_some_rows_has_these_and_no_other(records: list, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(first + 1, len(records)))
    batch = encoded(columns(records), first=first, end=end)
    found = iterate_records(batch, read_header(batch))
    assert [(each.key, each.value, each.headers) for each in found] == wanted(records[first:end])


@given(rows_of_records, st.data())
def test_slices_and_permutations_of_columns_are_encoded_as_such(records: list, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(records) - 1))
    keys, values, headers = zip(*records, strict=True)
    rows = Rows(
        as_bytes(pa.array(values, pa.binary())[first:]),
        as_bytes(pa.array(keys, pa.binary())[first:]),
        encode_headers(pa.array(headers, HEADERS)[first:]),
    )
    order = data.draw(st.permutations(range(len(rows))))
    batch = encoded(rows.take(np.array(order)))
    found = iterate_records(batch, read_header(batch))
    assert [(each.key, each.value, each.headers) for each in found] == [
        wanted(records)[first + place] for place in order
    ]


@given(rows_of_records)
def test_no_record_is_larger_than_its_bound(records: list) -> None:
    rows = columns(records)
    sizes = np.diff(encode_records(rows, np.arange(len(rows))).starts)
    assert (sizes <= rows.size_bounds()).all()


def test_strings_without_keys_and_headers_are_records_as_well() -> None:
    values = ["ä", None, "", "x" * 70_000]
    batch = encoded(Rows(as_bytes(pa.array(values))))
    found = list(iterate_records(batch, read_header(batch)))
    assert [each.value for each in found] == [None if value is None else value.encode() for value in values]
    assert {each.key for each in found} == {None}


@pytest.mark.parametrize("element", [None, {"key": None, "value": b"x"}])
def test_a_header_without_a_name_is_refused(element: object) -> None:
    with pytest.raises(RowError, match="a header without a name"):
        encode_headers(pa.array([[], [element]], HEADERS))


@given(st.lists(st.integers(-1, 2**31 - 1), min_size=1))
def test_numbers_take_the_bytes_that_they_are_said_to(numbers: list[int]) -> None:
    column = varints(np.array(numbers, np.int64))
    assert column.type == BYTES
    sizes = varint_sizes(np.array(numbers, np.int64)).tolist()
    assert [len(each) for each in column.to_pylist()] == sizes
    for number, each in zip(numbers, column.to_pylist(), strict=True):
        raw = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(each))
        assert (raw >> 1) ^ -(raw & 1) == number


@given(
    st.lists(st.integers(-(2**45), 2**45) | st.integers(1_700_000_000_000, 1_700_000_100_000), min_size=1, max_size=80),
    st.integers(1, 3),
)
def test_records_keep_times_of_their_own_however_far_apart(times_ms: list[int], partitions: int) -> None:
    sent: list[tuple[int, bytes, int]] = []

    class Producer:
        """Takes batches as they would be sent."""

        leaders = SimpleNamespace(partition_count=lambda topic: partitions)

        def max_batch_bytes(self, topic: str) -> int:
            return 600

        def send(
            self, topic: str, partition: int, section: memoryview, count: int, timestamp_ms: int, latest_ms: int
        ) -> None:
            numbers = {"attributes": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
            header = batch_header(section, count, timestamp_ms=timestamp_ms, max_timestamp_ms=latest_ms, **numbers)
            sent.append((partition, header + bytes(section), latest_ms))

    rows = TaskRows(Producer(), WriteColumns(value=0, partition=1, timestamp=2), WriteSettings((), "t"))  # type: ignore[arg-type]
    numbers = [number % partitions for number in range(len(times_ms))]
    rows.send(
        pa.RecordBatch.from_arrays(
            [
                pa.array([b"%d" % number for number in range(len(times_ms))]),
                pa.array(numbers, pa.int32()),
                pa.array([time * 1000 for time in times_ms]).cast(pa.timestamp("us", "UTC")),
            ],
            ["value", "partition", "timestamp"],
        )
    )
    found: dict[int, list[int]] = {number: [] for number in range(partitions)}
    for partition, data, latest_ms in sent:
        header = read_header(data)
        assert has_valid_crc(data, header)
        times = [record.timestamp for record in iterate_records(data, header)]
        assert (header.max_timestamp, header.base_timestamp) == (max(times), times[0])
        assert latest_ms == max(times)
        found[partition] += times
    assert found == {number: times_ms[number::partitions] for number in range(partitions)}
