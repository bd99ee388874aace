"""The header of a record batch: reading and checking it, and the fields that a broker writes.

A batch always has magic 2. The CRC covers everything from the attributes on, so a broker can set the base offset and
the leader epoch without changing the CRC. Records are not examined here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tailrace.runtime.disk import Buffer

MAGIC = 2
HEADER_BYTES = 61
#: Base offset and length: the bytes before those that the length counts.
PREFIX_BYTES = 12

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_PREFIX = struct.Struct(">qi")
_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_OFFSET = struct.Struct(">q")
_pack_offset_into = _OFFSET.pack_into
_LEADER_EPOCH = struct.Struct(">i")
_pack_leader_epoch_into = _LEADER_EPOCH.pack_into
_LEADER_EPOCH_AT = 12
_MAX_TIMESTAMP_AT = 35

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
#: The base timestamp is the time after which tombstones in the batch may be removed (KIP-534).
DELETE_HORIZON_BIT = 0x40
_NOT_FOR_PRODUCERS = CONTROL_BIT | LOG_APPEND_TIME_BIT


class BatchHeader(NamedTuple):
    """The fixed part of a record batch, field by field."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones in the batch, or the marker itself, may be removed; None until compaction sets it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.base_sequence, self.last_offset_delta)


#: Does the same as `BatchHeader._make` with one call less.
_new_header = tuple.__new__


def increment_sequence(sequence: int, by: int) -> int:
    """The sequence number `by` records later; 2^31-1 is followed by 0."""
    return (sequence + by) & 0x7FFFFFFF


def sequences_between(sequence: int, later: int) -> int:
    """The distance from a sequence number to a later one."""
    return (later - sequence) & 0x7FFFFFFF


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at a position without checking it."""
    return _new_header(BatchHeader, _unpack_header(data, position))


def has_valid_crc(data: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether a batch's CRC matches its bytes."""
    return bool(crc32c(memoryview(data)[position + _ATTRIBUTES_AT : position + header.size]) == header.crc)


def check_produced(data: memoryview) -> BatchHeader:
    """Check that a producer sent exactly one valid batch, by its header and CRC only."""
    size = len(data)
    if size < HEADER_BYTES:
        if size > 16 and data[16] < MAGIC:
            raise _wrong_magic(data[16])
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Record batch of {size} bytes is smaller than its header")
    header = _new_header(BatchHeader, _unpack_header(data, 0))
    (
        _,
        batch_length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        _,
        _,
        producer_id,
        _,
        base_sequence,
        count,
    ) = header
    if magic != MAGIC:
        raise _wrong_magic(magic)
    if batch_length + PREFIX_BYTES != size:
        if HEADER_BYTES <= batch_length + PREFIX_BYTES < size:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                "Produce requests must contain exactly one record batch per partition",
            )
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"Record batch claims {batch_length + PREFIX_BYTES} bytes but has {size}"
        )
    if crc32c(data[_ATTRIBUTES_AT:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "Record is corrupt (CRC does not match)")
    if count <= 0 or last_offset_delta != count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Record batch has {count} records but a last offset delta of {last_offset_delta}",
        )
    if attributes & _NOT_FOR_PRODUCERS:
        raise _wrong_attributes(attributes)
    if producer_id < 0 and attributes & TRANSACTIONAL_BIT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "A transactional batch must have a producer id")
    if producer_id >= 0 and base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"Invalid sequence number {base_sequence} for producer {producer_id}"
        )
    if (attributes & COMPRESSION_MASK) > 4:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type {attributes & 7}")
    return header


def _wrong_attributes(attributes: int) -> KafkaError:
    if attributes & CONTROL_BIT:
        return KafkaError(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records")
    return KafkaError(ErrorCode.INVALID_TIMESTAMP, "Producer should not set timestamp type to LogAppendTime.")


def _wrong_magic(magic: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        f"Record batches must have magic {MAGIC}, this one has {magic}",
    )


def assign_offset(data: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and leader epoch into a batch in place."""
    _pack_offset_into(data, 0, base_offset)
    _pack_leader_epoch_into(data, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(data: memoryview | bytearray, attributes: int, now_ms: int) -> None:
    """Set a batch's timestamp to LogAppendTime with the current time, and update its CRC."""
    struct.pack_into(">h", data, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    struct.pack_into(">q", data, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">I", data, _CRC_AT, crc32c(memoryview(data)[_ATTRIBUTES_AT:]))


def replace_records(data: Buffer, attributes: int, records: bytes) -> bytearray:
    """A copy of a batch with new attributes and a new records section, and the matching CRC."""
    batch = bytearray(memoryview(data)[:HEADER_BYTES])
    batch += records
    struct.pack_into(">i", batch, _LENGTH_AT, len(batch) - PREFIX_BYTES)
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, attributes)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
    return batch


def build_header(
    records: Buffer,
    record_count: int,
    *,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    leader_epoch: int,
    attributes: int = 0,
) -> bytes:
    """The header of a batch without a producer, for a records section that may have gaps between offsets."""
    counted = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        record_count,
    )
    length = HEADER_BYTES - PREFIX_BYTES + len(records)
    start = struct.pack(">qiibI", base_offset, length, leader_epoch, MAGIC, crc32c(records, crc32c(counted)))
    return start + counted


def iterate_batches(data: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch with its position, by headers alone; ends at the first truncated or impossible one."""
    end = len(data)
    while position + HEADER_BYTES <= end:
        header = BatchHeader._make(_unpack_header(data, position))
        size = header.batch_length + PREFIX_BYTES
        if size < HEADER_BYTES or position + size > end:
            return
        yield position, header
        position += size
