"""Scrubbing: reads stored batches in the helper to verify that they are unchanged."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.errors import StorageError
from tailrace.records.batch import HEADER_BYTES, MAGIC, has_valid_crc, read_header
from tailrace.runtime.disk import Disk


class Scrubbed(NamedTuple):
    """How far the check of a file has come, and the problem with the batch there, if any."""

    position: int
    problem: str | None


def scrub_file(disk: Disk, path: str, position: int, max_bytes: int) -> Scrubbed:
    """Check whole batches from a position on, at least one, up to `max_bytes` or the end of the file."""
    log = disk.open(path)
    size = log.size
    end = min(size, position + max_bytes)
    try:
        chunk, chunk_at = memoryview(log.read(position, end - position)), position
        while position < end:
            at = position - chunk_at
            if at + HEADER_BYTES > len(chunk):
                if size - position < HEADER_BYTES:
                    return Scrubbed(position, "the file ends in the middle of a batch")
                if position > chunk_at:
                    break  # the limit cut it off, not the end of the file: the next call starts with it
                chunk = memoryview(log.read(position, HEADER_BYTES))
            header = read_header(chunk, at)
            if header.magic != MAGIC or not HEADER_BYTES <= header.size <= size - position:
                return Scrubbed(position, f"no batch starts here (magic {header.magic}, {header.size} bytes)")
            if at + header.size > len(chunk):
                if position > chunk_at:
                    break
                chunk = memoryview(log.read(position, header.size))
            if not has_valid_crc(chunk, header, at):
                return Scrubbed(position, "the CRC of the batch does not match")
            position += header.size
    except StorageError as error:
        return Scrubbed(position, str(error))
    return Scrubbed(position, None)
