"""Changes the codec of a batch: decompresses and recompresses its records section as a whole, and fixes its header.

Single records are not examined. The decompressed size is limited, so that a decompression bomb costs only its batch.
All of this is pure computation and may run in a thread.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader, replace_records
from tailrace.records.compression import Compression, compress, decompress
from tailrace.runtime.disk import Buffer

#: The limit for decompressing a batch: this size, or this multiple of the topic's maximum message size if larger.
_UNPACKED_BYTES = 64 << 20
_UNPACKED_TIMES = 8


def unpacked_limit(max_message_bytes: int) -> int:
    """The limit for decompressing a batch of a topic, by its maximum message size."""
    return max(_UNPACKED_BYTES, _UNPACKED_TIMES * max_message_bytes)


def unpack(data: Buffer, header: BatchHeader, limit: int) -> Buffer:
    """The decompressed records section of a produced batch; INVALID_RECORD if that fails or exceeds the limit."""
    try:
        return decompress(header.compression, memoryview(data)[HEADER_BYTES:], limit)
    except KafkaError as error:
        # Not CORRUPT_MESSAGE: the CRC was right, so the producer sent exactly this, and would send it again.
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from None


def repack(data: Buffer, header: BatchHeader, records: Buffer, codec: Compression, level: int | None) -> bytearray:
    """The same batch with its records section, which is passed decompressed, in another codec."""
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return replace_records(data, attributes, compress(codec, records, level))
