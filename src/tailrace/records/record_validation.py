"""Validation of every record of a produced batch, as Kafka's brokers do it: clients can decode every valid batch.

Checks the number of records, their lengths and offset deltas, and that keys, values and headers fill each record to its
last byte. If the topic requires it, the same scan checks times and keys. It works on the decompressed records section,
in slices of a limited number of steps, because a record may have as many headers as it has bytes. Bytes are untrusted.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_TIMESTAMP
from tailrace.records.batch import BatchHeader
from tailrace.records.record_checks import cut_short, finish_varint, not_as_long, wrong_offset

_MAX_INT_BYTES = 5
_MAX_RAW_INT = 2**32 - 1


class RecordValidation:
    """A scan of the records of one batch that refuses whatever a decoder would refuse."""

    __slots__ = (
        "_at",
        "_base_timestamp",
        "_body",
        "_bounds",
        "_count",
        "_headers_left",
        "_index",
        "_needs_keys",
        "_stop",
        "keyless",
        "outside",
    )

    def __init__(
        self,
        body: bytes,
        header: BatchHeader,
        bounds: tuple[int, int] | None = None,
        *,
        needs_keys: bool = False,
    ) -> None:
        """Scan the records of a batch; with bounds, the time of each record is checked."""
        self._body = body
        self._base_timestamp = header.base_timestamp
        self._count = header.record_count
        self._bounds = bounds
        self._needs_keys = needs_keys
        self._at = 0
        self._index = 0
        #: The unchecked headers of the last record, and the end of that record.
        self._headers_left = 0
        self._stop = 0
        #: Indexes of records without a key, if keys are required.
        self.keyless: list[int] = []
        #: Indexes and times of records outside of the bounds.
        self.outside: list[tuple[int, int]] = []

    def advance(self, steps: int) -> bool:
        """Check up to this many more records and headers; True after the last one."""
        try:
            if self._headers_left:
                steps = self._check_headers(steps)
            while steps > 0 and self._index < self._count:
                steps = self._check_records(steps)
        except IndexError:
            raise cut_short() from None
        if self._headers_left or self._index < self._count:
            return False
        if self._at != len(self._body):
            raise KafkaError(ErrorCode.INVALID_RECORD, "Incorrect declared batch size, records still remaining in file")
        return True

    def _check_records(self, steps: int) -> int:
        """Check records up to the first with headers; returns the remaining steps.

        This loop runs for every record. One-byte and two-byte numbers, which most are, are decoded inline.
        """
        body = self._body
        size = len(body)
        at = self._at
        bounds = self._bounds
        end = min(self._count, self._index + steps)
        for index in range(self._index, end):
            length = body[at]
            at += 1
            if length > 127:
                more = body[at]
                if more < 128:
                    length += (more - 1) << 7
                    at += 1
                else:
                    length, at = _finish_int(body, at, length)
            stop = at + (length >> 1)
            if stop > size:
                raise cut_short()
            raw = body[at + 1]  # after the attributes, which are unused
            at += 2
            if raw > 127:
                raw, at = finish_varint(body, at, raw)
            if bounds is not None:
                time = self._base_timestamp + ((raw >> 1) ^ -(raw & 1))
                if not bounds[0] <= time <= bounds[1] and time != NO_TIMESTAMP:
                    self.outside.append((index, time))
            delta = body[at]
            at += 1
            if delta > 127:
                more = body[at]
                if more < 128:
                    delta += (more - 1) << 7
                    at += 1
                else:
                    delta, at = _finish_int(body, at, delta)
            if delta != index << 1:
                raise wrong_offset(index, delta)
            # In zigzag encoding the lowest bit is the sign, and a negative length means null.
            raw = body[at]
            at += 1
            if raw > 127:
                more = body[at]
                if more < 128:
                    raw += (more - 1) << 7
                    at += 1
                else:
                    raw, at = _finish_int(body, at, raw)
            if not raw & 1:
                at += raw >> 1
            elif self._needs_keys:
                self.keyless.append(index)
            raw = body[at]
            at += 1
            if raw > 127:
                more = body[at]
                if more < 128:
                    raw += (more - 1) << 7
                    at += 1
                else:
                    raw, at = _finish_int(body, at, raw)
            if not raw & 1:
                at += raw >> 1
            headers = body[at]
            at += 1
            if headers:
                if headers > 127:
                    headers, at = _finish_int(body, at, headers)
                if headers & 1 or headers >> 1 > stop - at:
                    raise _impossible_headers(index)
                steps -= index + 1 - self._index
                self._at, self._index = at, index + 1
                self._headers_left, self._stop = headers >> 1, stop
                return self._check_headers(steps)
            if at != stop or length & 1:
                raise not_as_long(index)
        self._at = at
        steps -= end - self._index
        self._index = end
        return steps

    def _check_headers(self, steps: int) -> int:
        """Check headers of the last record; returns the remaining steps."""
        body = self._body
        at = self._at
        count = min(self._headers_left, max(1, steps))
        for _ in range(count):
            raw = body[at]
            at += 1
            if raw > 127:
                more = body[at]
                if more < 128:
                    raw += (more - 1) << 7
                    at += 1
                else:
                    raw, at = _finish_int(body, at, raw)
            if raw & 1:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, f"Record {self._index - 1} of the batch has a header without a name"
                )
            at += raw >> 1
            raw = body[at]
            at += 1
            if raw > 127:
                more = body[at]
                if more < 128:
                    raw += (more - 1) << 7
                    at += 1
                else:
                    raw, at = _finish_int(body, at, raw)
            if not raw & 1:
                at += raw >> 1
        self._at = at
        self._headers_left -= count
        if not self._headers_left and at != self._stop:
            raise not_as_long(self._index - 1)
        return steps - count


def _finish_int(body: bytes, at: int, raw: int) -> tuple[int, int]:
    """The rest of a 32-bit number whose first byte was read, still zigzag encoded; clients accept up to five bytes."""
    start = at
    raw, at = finish_varint(body, at, raw)
    if at - start > _MAX_INT_BYTES - 1 or raw > _MAX_RAW_INT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "A variable-length number in a record is too long")
    return raw, at


def _impossible_headers(index: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch has an impossible number of headers")
