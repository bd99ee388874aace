"""Single records: iterating over those of a stored batch, and building a batch of new ones.

Stored bytes are untrusted: a wrong length in a record gives CORRUPT_MESSAGE, never a crash or a large allocation.
Building batches is for tools, internal topics and tests; the produce path does not use it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from crc32c import crc32c

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tailrace.records.batch import (
    _ATTRIBUTES_AT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
)
from tailrace.records.compression import MAX_DECOMPRESSED_BYTES, Compression, compress, decompress
from tailrace.runtime.disk import Buffer

#: A batch's header in two parts: the CRC covers everything from the attributes on.
_pack_start = struct.Struct(">qiibI").pack
_pack_counted = struct.Struct(">hiqqqhii").pack

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class NewRecord:
    """One record as a producer passes it."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: Headers = ()


def iterate_records(
    data: Buffer, header: BatchHeader, position: int = 0, limit: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """The records of the batch at a position, decompressed and decoded."""
    packed = memoryview(data)[position + HEADER_BYTES : position + header.size]
    body = bytes(decompress(header.compression, packed, limit))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    at = 0
    try:
        for _ in range(header.record_count):
            length, at = _read_varint(body, at)
            end = at + length
            if length < 0 or end > len(body):
                raise _corrupt("a record is longer than its batch")
            yield _read_record(body, at, end, header, append_time)
            at = end
    except IndexError:
        raise _corrupt("a record ends early") from None


def _read_record(body: bytes, at: int, end: int, header: BatchHeader, append_time: int | None) -> Record:
    at += 1  # attributes, unused
    timestamp_delta, at = _read_varint(body, at)
    offset_delta, at = _read_varint(body, at)
    key, at = _read_bytes(body, at, end)
    value, at = _read_bytes(body, at, end)
    count, at = _read_varint(body, at)
    if count < 0 or count > end - at:
        raise _corrupt("a record has an impossible number of headers")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(body, at, end)
        if name is None:
            raise _corrupt("a header has no name")
        content, at = _read_bytes(body, at, end)
        # The produce path does not check names; undecodable ones must not make a batch unreadable.
        headers.append((name.decode(errors="replace"), content))
    if at != end:
        raise _corrupt("a record is not as long as it says")
    timestamp = append_time if append_time is not None else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers))


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Record batch is corrupt: {why}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    shift = 0
    raw = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift > 63:
            raise _corrupt("a variable-length number is too long")


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise _corrupt("a field is longer than its record")
    return data[at : at + length], at + length


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    attributes: int = 0,
) -> bytearray:
    """Build a batch of records with consecutive offsets."""
    base_timestamp = records[0].timestamp
    body = b"".join(
        [
            _encode_record(record.timestamp - base_timestamp, delta, record.key, record.value, record.headers)
            for delta, record in enumerate(records)
        ]
    )
    counted = _pack_counted(
        attributes | compression,
        len(records) - 1,
        base_timestamp,
        max(record.timestamp for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    ) + (compress(compression, body) if compression else body)
    return _with_crc(counted, base_offset, leader_epoch)


def build_keyed_batch(records: Sequence[tuple[bytes, bytes | None]], timestamp: int) -> bytearray:
    """A faster `build_batch` for keys and values with a common timestamp; every offset commit needs one."""
    count = len(records)
    counted = [_pack_counted(0, count - 1, timestamp, timestamp, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, count)]
    for delta, (key, value) in enumerate(records):
        if value is None:
            counted.append(_encode_record(0, delta, key, None, ()))
            continue
        start = b"\0\0" + _varint(delta) + _varint(len(key)) + key + _varint(len(value))
        counted += _varint(len(start) + len(value) + 1), start, value, b"\0"
    return _with_crc(b"".join(counted), 0, NO_LEADER_EPOCH)


def _with_crc(counted: bytes, base_offset: int, leader_epoch: int) -> bytearray:
    """A whole batch, from everything that its CRC covers."""
    length = len(counted) + _ATTRIBUTES_AT - PREFIX_BYTES
    batch = bytearray(_pack_start(base_offset, length, leader_epoch, MAGIC, crc32c(counted)))
    batch += counted
    return batch


def _encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers
) -> bytes:
    parts = [
        b"\0",  # attributes, unused
        _varint(timestamp_delta),
        _varint(offset_delta),
        _varint(-1 if key is None else len(key)),
        key or b"",
        _varint(-1 if value is None else len(value)),
        value or b"",
        _varint(len(headers)),
    ]
    for name, content in headers:
        encoded = name.encode()
        parts += _varint(len(encoded)), encoded, _varint(-1 if content is None else len(content)), content or b""
    record = b"".join(parts)
    return _varint(len(record)) + record


@lru_cache(maxsize=4096)
def _varint(number: int) -> bytes:
    """A signed number in a record's encoding; cached, because lengths and deltas are small and recur."""
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
