"""Reads the files of a partition log from outside a broker, one batch or entry at a time.

Changes nothing and trusts nothing: an invalid batch becomes a `Corruption` with its position. Files are read piece by
piece, so a full segment needs no more memory than its largest batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

from tailrace.errors import KafkaError
from tailrace.records.batch import HEADER_BYTES, MAGIC, BatchHeader, has_valid_crc, read_header
from tailrace.records.record import Record, iterate_records

_OFFSET_ENTRY = struct.Struct(">iI")
_TIME_ENTRY = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A complete batch in a file."""

    position: int
    header: BatchHeader
    data: bytes
    crc_valid: bool

    def records(self) -> Iterator[Record]:
        """Decode the records; raise KafkaError if that fails."""
        return iterate_records(self.data, self.header)


@dataclass(frozen=True, slots=True)
class Corruption:
    """A position at which a file violates its format, and why."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An entry of an offset or time index: its position, the key and the value."""

    position: int
    key: int
    value: int


def read_batches(stream: IO[bytes], position: int = 0) -> Iterator[StoredBatch | Corruption]:
    """Yield each batch of a log file from a position on, and end at the first bytes that are not a batch."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(position)
    next_offset: int | None = None
    while position < size:
        head = stream.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            yield Corruption(position, f"only {len(head)} bytes are left, too few for a batch")
            return
        header = read_header(head)
        if header.magic != MAGIC or header.size < HEADER_BYTES:
            yield Corruption(position, f"no batch starts here (magic {header.magic}, {header.size} bytes)")
            return
        if position + header.size > size:
            missing = position + header.size - size
            yield Corruption(position, f"the batch is truncated: {missing} of its {header.size} bytes are missing")
            return
        data = head + stream.read(header.size - HEADER_BYTES)
        batch = StoredBatch(position, header, data, has_valid_crc(data, header))
        yield batch
        if not batch.crc_valid:
            yield Corruption(position, f"the CRC of the batch at offset {header.base_offset} does not match")
        elif next_offset is not None and header.base_offset < next_offset:
            yield Corruption(position, f"base offset {header.base_offset} comes after offset {next_offset - 1}")
        next_offset = header.next_offset
        position += header.size


def read_records(batch: StoredBatch) -> Iterator[Record | Corruption]:
    """Yield the records of a batch, up to the first that does not decode."""
    try:
        yield from batch.records()
    except KafkaError as error:
        yield Corruption(batch.position, str(error))


def base_offset_of(path: str) -> int:
    """Return the base offset in the name of a segment's file; raise ValueError if the name is not a number."""
    stem = os.path.basename(path).split(".", 1)[0]
    if not (stem.isascii() and stem.isdigit()):
        raise ValueError(
            f"{path} is not named after its base offset: expected a name such as 00000000000000000000.index"
        )
    return int(stem)


def read_offset_index(stream: IO[bytes], base_offset: int) -> Iterator[IndexEntry | Corruption]:
    """Yield offsets and the positions of the batches that contain them."""
    for entry in _read_entries(stream, _OFFSET_ENTRY):
        yield replace(entry, key=base_offset + entry.key) if isinstance(entry, IndexEntry) else entry


def read_time_index(stream: IO[bytes], base_offset: int) -> Iterator[IndexEntry | Corruption]:
    """Yield timestamps and the offsets of the records that have them."""
    for entry in _read_entries(stream, _TIME_ENTRY):
        yield replace(entry, value=base_offset + entry.value) if isinstance(entry, IndexEntry) else entry


def _read_entries(stream: IO[bytes], layout: struct.Struct) -> Iterator[IndexEntry | Corruption]:
    data = stream.read()
    whole = len(data) - len(data) % layout.size
    # Apache Kafka allocates the index of the active segment at full size and fills it with zeros: skip those.
    used = -(-len(data.rstrip(b"\0")) // layout.size) * layout.size
    previous: IndexEntry | None = None
    for position in range(0, min(used, whole), layout.size):
        entry = IndexEntry(position, *layout.unpack_from(data, position))
        yield entry
        if previous is not None and (entry.key <= previous.key or entry.value < previous.value):
            yield Corruption(position, "the entry is not greater than the one before it")
        previous = entry
    if whole < len(data):
        yield Corruption(
            whole, f"the last entry is truncated: only {len(data) - whole} of its {layout.size} bytes are there"
        )
