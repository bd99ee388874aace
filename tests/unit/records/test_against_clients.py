"""Batches cross-checked with the record builders and parsers of two client libraries, in both directions."""

from __future__ import annotations

import warnings

import aiokafka.codec
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st

from tailrace.records.batch import check_produced
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tests.unit.records.strategies import quick, record_lists

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

READERS = {"aiokafka": AiokafkaBatch, "kafka-python": KafkaPythonBatch}
BUILDERS = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}
_HAS_SNAPPY = {"aiokafka": aiokafka.codec.has_snappy(), "kafka-python": kafka.codec.has_snappy()}
PAIRS = [
    (client, codec)
    for client in READERS
    for codec in Compression
    if codec is not Compression.SNAPPY or _HAS_SNAPPY[client]
]


def test_every_codec_is_cross_checked_with_some_client() -> None:
    assert {codec for _, codec in PAIRS} == set(Compression)


@pytest.mark.parametrize(("client", "codec"), PAIRS)
@quick
@given(records=record_lists, base_offset=st.integers(0, 2**40))
def test_clients_read_what_we_build(
    client: str, codec: Compression, records: list[NewRecord], base_offset: int
) -> None:
    data = bytes(build_batch(records, base_offset=base_offset, compression=codec))
    batch = READERS[client](data)
    assert batch.validate_crc()
    assert batch.compression_type == codec
    assert batch.next_offset == base_offset + len(records)
    assert batch.max_timestamp == max(record.timestamp for record in records)
    read = [(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch]
    assert read == [
        (base_offset + delta, record.timestamp, record.key, record.value, record.headers)
        for delta, record in enumerate(records)
    ]


@pytest.mark.parametrize(("client", "codec"), PAIRS)
@quick
@given(records=record_lists)
def test_we_read_what_clients_build(client: str, codec: Compression, records: list[NewRecord]) -> None:
    builder = BUILDERS[client](
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
        batch_size=1 << 20,
    )
    for number, record in enumerate(records):
        assert builder.append(number, record.timestamp, record.key, record.value, list(record.headers)) is not None
    data = bytearray(builder.build())
    header = check_produced(memoryview(data))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)
    read = [(each.timestamp, each.key, each.value, each.headers) for each in iterate_records(data, header)]
    assert read == [(record.timestamp, record.key, record.value, record.headers) for record in records]
