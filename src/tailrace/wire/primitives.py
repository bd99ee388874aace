"""The protocol's smallest parts, as functions for rare paths that compiled code does not inline.

Owns variable-length integers, skipping of tagged fields, and UUID values. Every malformed input raises `WireError`, and
nothing is allocated before the bytes that justify it have been seen. This module knows no messages.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from tailrace.errors import WireError

MAX_UVARINT = 0xFFFF_FFFF
#: Far more than any valid message has in one struct; more would only serve to keep the reader busy.
MAX_TAGGED_FIELDS = 256
#: Maximum number of elements in all arrays of a request together. Most elements take 16 bytes or more, so an honest
#: request of 1 MiB, the size limit except for Produce, hardly has as many.
MOST_ELEMENTS = 65_536


def finish_uvarint(view: memoryview, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte had its continuation bit set."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        try:
            byte = view[position]
        except IndexError:
            raise WireError("a varint runs past the end") from None
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_UVARINT:
                break
            return value, position
    raise WireError("a varint has more than 32 bits")


def too_many_elements() -> WireError:
    """The error for a request with too many elements."""
    return WireError(f"its arrays have more than {MOST_ELEMENTS} elements: split the request")


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; returns it and the position after it."""
    try:
        first = view[position]
    except IndexError:
        raise WireError("a varint runs past the end") from None
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(view, position + 1, first)


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint of at most 32 bits."""
    if not 0 <= value <= MAX_UVARINT:
        raise ValueError(f"{value} is not an unsigned 32-bit number")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag_count(view: memoryview, position: int, first: int) -> tuple[int, int]:
    """The number of tagged fields in a struct, given the first byte of that number."""
    count = first
    if first > 0x7F:
        count, position = finish_uvarint(view, position, first)
    if count > MAX_TAGGED_FIELDS:
        raise WireError(f"a struct has {count} tagged fields; the maximum is {MAX_TAGGED_FIELDS}")
    return count, position


def skip_tagged_fields(view: memoryview, position: int, count: int) -> int:
    """Skip unknown tagged fields, given the first byte of their count; returns the position after them."""
    count, position = tag_count(view, position, count)
    end = len(view)
    for _ in range(count):
        _, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        position += size
        if position > end:
            raise WireError("a tagged field runs past the end")
    return position


@lru_cache(maxsize=4096)
def uuid_from_bytes(raw: bytes) -> UUID:
    """The UUID of 16 bytes; cached, because topic ids recur in every request."""
    return UUID(bytes=raw)
