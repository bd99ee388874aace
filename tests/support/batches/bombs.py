"""Batches of a few bytes that unpack to very many records."""

from __future__ import annotations

import struct

import zstandard

from tailrace.records.batch import HEADER_BYTES, read_header, replace_records
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch

#: A record without key, value and headers, at offset delta 0 and timestamp delta 0.
EMPTY_RECORD = b"\x0c\x00\x00\x00\x01\x01\x00"
#: The same with an empty key.
KEYED_RECORD = b"\x0c\x00\x00\x00\x00\x01\x00"


def bomb(record: bytes = EMPTY_RECORD, *, count: int, claimed_ms: int = 1 << 40) -> bytes:
    """A batch of very many tiny records that says it has one of a time that none of them has."""
    batch = build_batch([NewRecord(None, timestamp=1)])
    records = zstandard.ZstdCompressor(3).compress(record * count)
    header = read_header(batch)
    bombed = replace_records(batch, header.attributes | Compression.ZSTD, records)
    struct.pack_into(">i", bombed, 23, count - 1)  # last offset delta
    struct.pack_into(">q", bombed, 35, claimed_ms)  # largest timestamp
    struct.pack_into(">i", bombed, HEADER_BYTES - 4, count)
    # The checksum comes last, and counts all that was changed.
    return bytes(replace_records(bombed, header.attributes | Compression.ZSTD, records))
