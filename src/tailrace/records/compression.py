"""The five codecs of a record batch, with a limit on the decompressed size.

Owns the framing that Kafka clients expect of each codec. Stored batches keep their producer's compression unless their
topic configures another. All input is untrusted.
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


#: A batch that decompresses to more is taken for an attack: far above any reasonable message.max.bytes.
MAX_DECOMPRESSED_BYTES = 1 << 30

#: The default levels of codecs with levels.
DEFAULT_GZIP_LEVEL = -1
DEFAULT_LZ4_LEVEL = 9
DEFAULT_ZSTD_LEVEL = 3

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_STEP_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
#: liblz4's first high-compression level; lower ones use the fast compressor.
_LZ4_FIRST_HIGH_LEVEL = 3
_LZ4_FAST_LEVEL = 0
_LZ4_LAST_LEVEL = 16
#: A three-byte snappy element copies at most 64 bytes, so a block cannot expand by more than this.
_SNAPPY_MAX_RATIO = 22

#: The maximum expansion of each codec; zstd has none.
_MAX_RATIOS: dict[int, int] = {Compression.GZIP: 1032, Compression.SNAPPY: _SNAPPY_MAX_RATIO, Compression.LZ4: 256}


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records section of a batch as Kafka's own clients do; `level` is Kafka's level."""
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        packer = zlib.compressobj(DEFAULT_GZIP_LEVEL if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec is Compression.SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec is Compression.LZ4:
        # The Java client refuses frames whose blocks depend on each other.
        return bytes(
            lz4.frame.compress(
                data,
                compression_level=_lz4_level(level),
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
            )
        )
    return zstandard.ZstdCompressor(DEFAULT_ZSTD_LEVEL if level is None else level).compress(data)


def _lz4_level(level: int | None) -> int:
    """The library's level for Kafka's: Kafka's default is the fast compressor, all others the thorough one."""
    if level is None or level == DEFAULT_LZ4_LEVEL:
        return _LZ4_FAST_LEVEL
    return min(max(level, _LZ4_FIRST_HIGH_LEVEL), _LZ4_LAST_LEVEL)


def decompress(codec: int, data: Buffer, limit: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress the records section of a batch; CORRUPT_MESSAGE if that fails or exceeds the limit."""
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
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Cannot decompress records: {error}") from None
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type {codec}")


def most_unpacked(codec: int, size: int, limit: int) -> int:
    """The maximum decompressed size of a records section, by its codec and size, within a limit."""
    if codec == Compression.NONE:
        return size
    times = _MAX_RATIOS.get(codec)
    return limit if times is None else min(limit, times * size)


def _too_large(limit: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Records decompress to more than {limit} bytes")


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    rest: Buffer = data
    while True:
        unpacker = zlib.decompressobj(31)
        output = unpacker.decompress(rest, limit - size + 1)
        size += len(output)
        if size > limit:
            raise _too_large(limit)
        if not unpacker.eof:
            raise EOFError("gzip stream ends early")
        pieces.append(output)
        rest = unpacker.unused_data
        if not rest.startswith(_GZIP_MAGIC):  # concatenated streams count as one
            return output if len(pieces) == 1 else b"".join(pieces)


def _decompress_lz4(data: Buffer, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    pieces: list[bytes] = []
    size = 0
    packed = bytes(data)
    while not unpacker.eof:
        # In steps, because the library allocates the whole output limit in advance.
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
    packed = bytes(data)
    _require_whole_zstd_frame(packed)
    pieces: list[bytes] = []
    size = 0
    for piece in zstandard.ZstdDecompressor().read_to_iter(packed):
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _require_whole_zstd_frame(packed: bytes) -> None:
    """Follow the blocks of a frame to the last one: the library silently accepts a truncated frame."""
    position = zstandard.frame_header_size(packed)
    while True:
        head = int.from_bytes(packed[position : position + 3], "little")
        is_run = head >> 1 & 3 == 1  # one byte, repeated
        position += 3 + (1 if is_run else head >> 3)
        if position > len(packed):
            raise EOFError("zstd frame ends early")
        if head & 1:
            return


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
