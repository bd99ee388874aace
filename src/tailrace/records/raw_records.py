"""Raw records: found in a batch without decoding them, and written to a batch with fewer records.

The records kept in a batch keep their offsets, sequence numbers and bytes. Only timestamps are rewritten, and only if
the base timestamp becomes a delete horizon. Stored bytes are untrusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_TIMESTAMP
from tailrace.records.batch import (
    _ATTRIBUTES_AT,
    _CRC_AT,
    _HEADER,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
)
from tailrace.records.compression import Compression, compress, decompress
from tailrace.records.record import _read_varint, _varint
from tailrace.runtime.disk import Buffer


class RawRecord(NamedTuple):
    """The position of a record in the decompressed records of its batch, with a few of its fields."""

    start: int
    #: The end of the timestamp: the bytes after it are the same in any batch with the same base offset.
    after_timestamp: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def unpack_records(data: Buffer, header: BatchHeader, limit: int) -> bytes:
    """The decompressed records section of a batch."""
    return bytes(decompress(header.compression, memoryview(data)[HEADER_BYTES : header.size], limit))


def find_records(body: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Each record of a decompressed records section; CORRUPT_MESSAGE if it does not match the header."""
    at = 0
    size = len(body)
    last_delta = -1
    try:
        for _ in range(header.record_count):
            start = at
            length, at = _read_varint(body, at)
            end = at + length
            if length < 0 or end > size:
                raise _corrupt("a record is longer than its batch")
            timestamp_delta, after_timestamp = _read_varint(body, at + 1)
            offset_delta, at = _read_varint(body, after_timestamp)
            key_length, at = _read_varint(body, at)
            key = None
            if key_length >= 0:
                key = body[at : at + key_length]
                at += key_length
            value_length, at = _read_varint(body, at)
            if at + max(value_length, 0) >= end:  # the number of headers comes after it
                raise _corrupt("a record is not as long as it says")
            if not last_delta < offset_delta <= header.last_offset_delta:
                raise _corrupt(f"offset delta {offset_delta} comes after {last_delta}")
            last_delta = offset_delta
            at = end
            yield RawRecord(start, after_timestamp, end, timestamp_delta, offset_delta, key, value_length >= 0)
    except IndexError:
        raise _corrupt("a record ends early") from None
    if at != size:
        raise _corrupt("there is more in it than its records")


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Record batch is corrupt: {why}")


def rebuild_batch(
    header: BatchHeader, body: bytes, kept: Sequence[RawRecord], delete_horizon_ms: int | None = None
) -> bytearray:
    """A copy of a batch with only some of its records, and optionally with a delete horizon."""
    base_timestamp = header.base_timestamp
    if header.attributes & LOG_APPEND_TIME_BIT:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = base_timestamp + max(record.timestamp_delta for record in kept)
    attributes = header.attributes
    if delete_horizon_ms is None:
        records = b"".join([body[record.start : record.end] for record in kept])
    else:
        records = _retimed(body, kept, base_timestamp - delete_horizon_ms)
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    packed = compress(Compression(header.compression), records)
    return _pack(header, attributes, base_timestamp, max_timestamp, len(kept), packed)


def _retimed(body: bytes, kept: Sequence[RawRecord], shift: int) -> bytes:
    """Records with timestamps relative to another base."""
    records = bytearray()
    for record in kept:
        start = b"\0" + _varint(record.timestamp_delta + shift)  # after the record's attributes, unused
        records += _varint(len(start) + record.end - record.after_timestamp)
        records += start
        records += body[record.after_timestamp : record.end]
    return bytes(records)


def empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records, which only preserves the last offset of its producer or of the log."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return _pack(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0, b"")


def _pack(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, packed: bytes
) -> bytearray:
    batch = bytearray(HEADER_BYTES)
    batch += packed
    _HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - PREFIX_BYTES,
        header.leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    batch[_CRC_AT:_ATTRIBUTES_AT] = crc32c(memoryview(batch)[_ATTRIBUTES_AT:]).to_bytes(4, "big")
    return batch
