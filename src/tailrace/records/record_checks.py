"""Checks that a topic may require for single records on produce: that they have keys, and valid times.

Works on the decompressed records section of a batch, in slices, so that a batch with many records does not block other
requests. Only necessary fields are read; keys and values are skipped. Bytes are untrusted.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, KafkaError, RecordsRefusedError
from tailrace.model import NO_TIMESTAMP, TopicPartition
from tailrace.records.batch import BatchHeader

#: How many bad records of a batch are listed at most.
MAX_NAMED_RECORDS = 1000
_SHOWN_IN_MESSAGE = 3


class RecordScan:
    """A scan of the records of one batch that checks keys and times."""

    __slots__ = ("_at", "_base_timestamp", "_body", "_bounds", "_count", "_index", "keyless", "outside")

    def __init__(self, body: bytes, header: BatchHeader, bounds: tuple[int, int] | None = None) -> None:
        """Scan the records of a batch; with bounds, the time of each record is checked."""
        self._body = body
        self._base_timestamp = header.base_timestamp
        self._count = header.record_count
        self._bounds = bounds
        self._at = 0
        self._index = 0
        #: Indexes of records without a key.
        self.keyless: list[int] = []
        #: Indexes and times of records outside of the bounds.
        self.outside: list[tuple[int, int]] = []

    def advance(self, records: int) -> bool:
        """Check up to this many more records; True after the last one."""
        end = min(self._count, self._index + records)
        try:
            if self._bounds is None:
                self._find_keyless(end)
            else:
                self._find_outside(end, *self._bounds)
        except IndexError:
            raise cut_short() from None
        if self._index < self._count:
            return False
        if self._at != len(self._body):
            raise KafkaError(ErrorCode.INVALID_RECORD, "Incorrect declared batch size, records still remaining in file")
        return True

    def _find_keyless(self, end: int) -> None:
        """The loop that runs for every record of compacted topics, with as few steps as possible."""
        body = self._body
        at = self._at
        for index in range(self._index, end):
            length = body[at]
            at += 1
            if length > 127:
                length, at = finish_varint(body, at, length)
            stop = at + (length >> 1)
            time = body[at + 1]  # after the attributes
            at += 2
            if time > 127:
                _, at = finish_varint(body, at, time)
            delta = body[at]
            at += 1
            if delta > 127:
                delta, at = finish_varint(body, at, delta)
            if delta != index << 1:
                raise wrong_offset(index, delta)
            # In zigzag encoding the lowest bit is the sign, and a negative length means no key.
            if body[at] & 1:
                self.keyless.append(index)
            if at >= stop or length & 1:
                raise not_as_long(index)
            at = stop
        if at > len(body):
            raise cut_short()
        self._at = at
        self._index = end

    def _find_outside(self, end: int, earliest: int, latest: int) -> None:
        body = self._body
        at = self._at
        for index in range(self._index, end):
            length, at = finish_varint(body, at + 1, body[at])
            start = at
            raw, at = finish_varint(body, at + 2, body[at + 1])
            time = self._base_timestamp + ((raw >> 1) ^ -(raw & 1))
            if not earliest <= time <= latest and time != NO_TIMESTAMP:
                self.outside.append((index, time))
            delta, at = finish_varint(body, at + 1, body[at])
            if delta != index << 1:
                raise wrong_offset(index, delta)
            if body[at] & 1:
                self.keyless.append(index)
            if at >= start + (length >> 1) or length & 1:
                raise not_as_long(index)
            at = start + (length >> 1)
        if at > len(body):
            raise cut_short()
        self._at = at
        self._index = end


def finish_varint(body: bytes, at: int, raw: int) -> tuple[int, int]:
    """The rest of a number whose first byte was read, still zigzag encoded."""
    if raw <= 127:
        return raw, at
    raw &= 0x7F
    shift = 7
    while True:
        byte = body[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 128:
            return raw, at
        shift += 7
        if shift > 63:
            raise KafkaError(ErrorCode.INVALID_RECORD, "A variable-length number in a record is too long")


def cut_short() -> KafkaError:
    """The error for a batch with too few bytes for its records."""
    return KafkaError(ErrorCode.INVALID_RECORD, "Incorrect declared batch size, premature EOF reached")


def not_as_long(index: int) -> KafkaError:
    """The error for a record with a wrong length."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch is not as long as it says")


def wrong_offset(index: int, raw: int) -> KafkaError:
    """The error for a record whose offset delta is not its index in the batch."""
    delta = (raw >> 1) ^ -(raw & 1)
    return KafkaError(
        ErrorCode.INVALID_RECORD, f"Record {index} of the batch has an offset delta of {delta} and should have {index}"
    )


def refuse_keyless(partition: TopicPartition, keyless: list[int]) -> RecordsRefusedError:
    """The error of a compacted topic for a batch with records that have no key."""
    why = f"Compacted topic cannot accept message without key in topic partition {partition}"
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index in keyless[:_SHOWN_IN_MESSAGE])
    return RecordsRefusedError(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {len(keyless)} record errors in total, and only showing the "
        f"first three errors at most: [{shown}]",
        [(index, why) for index in keyless[:MAX_NAMED_RECORDS]],
    )


def refuse_times(outside: list[tuple[int, int]], bounds: tuple[int, int]) -> RecordsRefusedError:
    """The error for a batch with record times out of bounds."""
    allowed = f"is out of range. The timestamp should be within [{bounds[0]}, {bounds[1]}]"
    return RecordsRefusedError(
        ErrorCode.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
        [
            (index, f"Timestamp {time} of message with offset {index} {allowed}")
            for index, time in outside[:MAX_NAMED_RECORDS]
        ],
    )
