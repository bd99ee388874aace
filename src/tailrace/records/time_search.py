"""Finds the first record of a batch at or after a time, in slices: a few bytes may decompress to millions of records.

Works on the decompressed records section. Only lengths, times and offsets are read; keys and values are skipped. Bytes
are untrusted: malformed ones give CORRUPT_MESSAGE.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import LOG_APPEND_TIME_BIT, BatchHeader


class TimeSearch:
    """A scan of the records of one batch, from the first one on."""

    __slots__ = ("_at", "_body", "_header", "_index", "_offsets", "_timestamp", "found")

    def __init__(self, body: bytes, header: BatchHeader, timestamp: int, offsets: range) -> None:
        """Search for a record at or after a time, with an offset within a range."""
        self._body = body
        self._header = header
        self._timestamp = timestamp
        self._offsets = offsets
        self._at = 0
        self._index = 0
        #: The offset and time of the record found.
        self.found: tuple[int, int] | None = None

    def advance(self, records: int) -> bool:
        """Scan up to this many more records; True when the search is over."""
        try:
            self._advance(min(self._header.record_count, self._index + records))
        except IndexError:
            raise _corrupt("a record ends early") from None
        return self.found is not None or self._index >= self._header.record_count

    def _advance(self, end: int) -> None:
        header, body, at = self._header, self._body, self._at
        append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
        base_timestamp, base_offset, wanted, offsets = (
            header.base_timestamp,
            header.base_offset,
            self._timestamp,
            self._offsets,
        )
        for _ in range(self._index, end):
            length, at = _varint(body, at)
            stop = at + length
            if length < 0 or stop > len(body):
                raise _corrupt("a record is longer than its batch")
            delta, at = _varint(body, at + 1)  # after the attributes
            time = base_timestamp + delta if append_time is None else append_time
            if time >= wanted:
                delta, at = _varint(body, at)
                if base_offset + delta in offsets:
                    self.found = (base_offset + delta, time)
                    return
            if at > stop:
                raise _corrupt("a record is not as long as it says")
            at = stop
        self._at = at
        self._index = end


def _varint(body: bytes, at: int) -> tuple[int, int]:
    raw = body[at]
    at += 1
    if raw > 127:
        raw &= 127
        shift = 7
        while True:
            byte = body[at]
            at += 1
            raw |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise _corrupt("a variable-length number is too long")
    return (raw >> 1) ^ -(raw & 1), at


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Record batch is corrupt: {why}")
