"""Giving a batch another codec: its records section unpacked and packed again as one blob, its header put right.

Single records are not looked into. What a batch may unpack to is bounded, so that a bomb costs its sender the batch
and nobody any memory. Everything here is plain computing and may run in a thread.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader, replace_records
from tailrace.records.compression import Compression, compress, decompress
from tailrace.runtime.disk import Buffer

#: A batch may unpack to this much, or to so many times what its topic takes as a message, if that is more.
_UNPACKED_BYTES = 64 << 20
_UNPACKED_TIMES = 8


def unpacked_limit(max_message_bytes: int) -> int:
    """What a batch may unpack to on a topic that takes messages of a size."""
    return max(_UNPACKED_BYTES, _UNPACKED_TIMES * max_message_bytes)


def unpack(data: Buffer, header: BatchHeader, limit: int) -> Buffer:
    """The records section of a produced batch, unpacked; INVALID_RECORD where it does not unpack within the limit."""
    try:
        return decompress(header.compression, memoryview(data)[HEADER_BYTES:], limit)
    except KafkaError as error:
        # Not CORRUPT_MESSAGE: the CRC was right, so the producer sent just this, and would send it again.
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from None


def repack(data: Buffer, header: BatchHeader, records: Buffer, codec: Compression, level: int | None) -> bytearray:
    """The same batch with its records section, given unpacked, in another codec."""
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return replace_records(data, attributes, compress(codec, records, level))
