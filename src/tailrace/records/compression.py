"""The five codecs of a record batch, with a bound on what decompression may produce.

Owns the framing that Kafka clients expect of each codec. Stored batches are kept as their producer sent
them; only readers of records come here, and they treat the bytes as untrusted.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard

from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.disk import Buffer


class Compression(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


#: What a batch may unpack to before it is taken for an attack: far above any sane message.max.bytes.
MAX_DECOMPRESSED_BYTES = 1 << 30

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_STEP_BYTES = 1 << 20
#: A snappy element of three bytes copies at most 64: a block that claims more than that is not believed.
_SNAPPY_MAX_RATIO = 22


def compress(codec: Compression, data: Buffer) -> bytes:
    """Compress the records section of a batch as Kafka's own clients do."""
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec is Compression.SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec is Compression.LZ4:
        # The Java client refuses frames whose blocks depend on each other.
        return bytes(lz4.frame.compress(bytes(data), block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False))
    return zstandard.ZstdCompressor().compress(data)


def decompress(codec: int, data: Buffer, limit: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress the records section of a batch; CORRUPT_MESSAGE where it does not unpack within the limit."""
    if codec == Compression.NONE:
        return data
    try:
        if codec == Compression.GZIP:
            return _decompress_gzip(data, limit)
        if codec == Compression.SNAPPY:
            return _decompress_snappy(bytes(data), limit)
        if codec == Compression.LZ4:
            return _decompress_lz4(data, limit)
        if codec == Compression.ZSTD:
            return _decompress_zstd(data, limit)
    except (
        zlib.error,
        RuntimeError,
        ValueError,
        EOFError,
        zstandard.ZstdError,
        cramjam.DecompressionError,
    ) as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Records do not decompress: {error}") from None
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type {codec}")


def _too_large(limit: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Records decompress to more than {limit} bytes")


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    unpacker = zlib.decompressobj(31)
    output = unpacker.decompress(data, limit + 1)
    if len(output) > limit:
        raise _too_large(limit)
    if not unpacker.eof:
        raise EOFError("gzip stream ends early")
    return output


def _decompress_lz4(data: Buffer, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    pieces: list[bytes] = []
    size = 0
    packed = bytes(data)
    while not unpacker.eof:
        # In steps, because the library allocates all that it may return before it has seen any of it.
        piece: bytes = unpacker.decompress(packed, max_length=_LZ4_STEP_BYTES)
        packed = b""
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if not piece and not unpacker.eof:
            raise EOFError("lz4 frame ends early")
        pieces.append(piece)
    return b"".join(pieces)


def _decompress_zstd(data: Buffer, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    for piece in zstandard.ZstdDecompressor().read_to_iter(bytes(data)):
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    if not pieces and len(data) == 0:
        raise EOFError("zstd frame is empty")
    return b"".join(pieces)


def _compress_xerial(data: memoryview) -> bytes:
    blocks = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK_BYTES])))
        blocks.append(struct.pack(">i", len(block)))
        blocks.append(block)
    return b"".join(blocks)


def _decompress_snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):  # librdkafka may send one raw block
        return _decompress_snappy_block(data, limit)
    position = len(_XERIAL_HEADER)
    blocks: list[bytes] = []
    size = 0
    while position < len(data):
        if position + 4 > len(data):
            raise EOFError("snappy block length ends early")
        length = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if position + length > len(data):
            raise EOFError("snappy block ends early")
        block = _decompress_snappy_block(data[position : position + length], limit - size)
        size += len(block)
        blocks.append(block)
        position += length
    return b"".join(blocks)


def _decompress_snappy_block(block: bytes, limit: int) -> bytes:
    if not block:
        raise EOFError("snappy block is empty")
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise ValueError(f"a snappy block of {len(block)} bytes cannot hold {size}")
    return bytes(cramjam.snappy.decompress_raw(block))
