"""Batches whose header and CRC are right and whose records are not: brokers that trust headers take them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tailrace.records.batch import HEADER_BYTES, read_header, replace_records
from tailrace.records.compression import Compression, compress
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.clients.raw_client import RawClient

_LAST_OFFSET_DELTA_AT = 23
_COUNT_AT = HEADER_BYTES - 4


def sound_batch(
    values: list[bytes], codec: Compression = Compression.NONE, *, timestamp: int = 1_700_000_000_000
) -> bytes:
    """A batch that everybody can decode, with keys, values and a header in every record."""
    records = [NewRecord(value, b"key", timestamp, (("header", b"content"),)) for value in values]
    return bytes(build_batch(records, compression=codec))


def with_body(batch: bytes, body: bytes, codec: Compression = Compression.NONE) -> bytes:
    """The same batch with other bytes for records, which are not compressed here, and a CRC that is right."""
    return bytes(replace_records(batch, codec, body))


def with_count(batch: bytes, count: int) -> bytes:
    """The same batch with another number of records, which its last offset agrees with."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, _LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">i", changed, _COUNT_AT, count)
    return bytes(replace_records(changed, read_header(changed).attributes, bytes(changed[HEADER_BYTES:])))


def poison_batch(values: list[bytes], codec: Compression = Compression.GZIP) -> bytes:
    """A batch that says it is compressed, and is not: nobody can decode it."""
    return with_body(sound_batch(values), b"these bytes are not compressed", codec)


def _records_of(values: list[bytes]) -> bytes:
    return sound_batch(values)[HEADER_BYTES:]


def _patched(at: int, byte: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch of two records of 32 bytes, of which one byte was changed."""
    body = bytearray(_records_of([b"first", b"other"]))
    body[at] = byte
    return with_body(sound_batch([b"first", b"other"]), compress(codec, bytes(body)), codec)


#: One batch for each way in which records can be wrong. The bytes of a record: 0 its length, 1 attributes, 2 time,
#: 3 offset delta, 4 length of the key, 5 key, 8 length of the value, 9 value, 14 number of headers, 15 length of the
#: name, 16 name, 22 length of its value, 23 value.
DAMAGES: Mapping[str, Callable[[], bytes]] = MappingProxyType(
    {
        "gzip that is not gzip": lambda: poison_batch([b"a", b"b"]),
        "snappy that is not snappy": lambda: poison_batch([b"a", b"b"], Compression.SNAPPY),
        "lz4 that is not lz4": lambda: poison_batch([b"a", b"b"], Compression.LZ4),
        "zstd that is not zstd": lambda: poison_batch([b"a", b"b"], Compression.ZSTD),
        "gzip that is cut": lambda: with_body(
            sound_batch([b"a" * 500]), compress(Compression.GZIP, _records_of([b"a" * 500]))[:-20], Compression.GZIP
        ),
        "fewer records than it says": lambda: with_count(sound_batch([b"a", b"b"]), 3),
        "fewer records than it says, packed": lambda: with_count(sound_batch([b"a", b"b"], Compression.ZSTD), 3),
        "more records than it says": lambda: with_count(sound_batch([b"a", b"b"]), 1),
        "more records than it says, packed": lambda: with_count(sound_batch([b"a", b"b"], Compression.GZIP), 1),
        "an offset delta that is not its place": lambda: _patched(3, 4),
        "an offset delta that is not its place, packed": lambda: _patched(3, 4, Compression.LZ4),
        "a record longer than its batch": lambda: _patched(0, 0x7E),
        "a record of negative length": lambda: _patched(0, 1),
        "a record shorter than its content": lambda: _patched(0, 20),
        "a key longer than its record": lambda: _patched(4, 0x7E),
        "a value longer than its record": lambda: _patched(8, 0x7E),
        "a value that leaves bytes over": lambda: _patched(8, 2),
        "a negative number of headers": lambda: _patched(14, 1),
        "more headers than bytes": lambda: _patched(14, 0x7E),
        "a header without a name": lambda: _patched(15, 1),
        "a name longer than its record": lambda: _patched(15, 0x7E),
        "a header's value longer than its record": lambda: _patched(22, 0x7E),
        "bytes behind the headers": lambda: _patched(22, 2),
    }
)


def produce_batch(port: int, topic: str, batch: bytes, partition: int = 0) -> int:
    """Have a broker append a batch as it is; the offset that it got."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    with RawClient(port) as client:
        answer = client.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), 8, ProduceResponse)
    (told,) = answer.responses[0].partition_responses
    assert not told.error_code, told
    return told.base_offset


def fetch_batches(port: int, topic: str, offset: int, partition: int = 0) -> bytes:
    """What a broker sends for an offset, asked until it has something."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])])
    with RawClient(port) as client:
        for _ in range(100):
            data = client.ask(request, 11, FetchResponse).responses[0].partitions[0]
            assert not data.error_code, data
            if data.records:
                assert isinstance(data.records, bytes | bytearray | memoryview)
                return bytes(data.records)
    raise AssertionError(f"nothing comes for offset {offset} of {topic}")
