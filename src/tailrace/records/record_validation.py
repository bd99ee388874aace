"""Validation of every record of a produced batch, as Kafka's brokers do it: what passes here, every client can decode.

Checks the number of records, their lengths and offset deltas, and that keys, values and headers fill each record to its
last byte. Times and keys are checked on the same walk where the topic asks for that. It works on the unpacked records
section, in slices of a bounded number of steps: a record may have as many headers as it has bytes. Bytes are untrusted.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_TIMESTAMP
from tailrace.records.batch import BatchHeader
from tailrace.records.record_checks import cut_short, finish_varint, not_as_long, wrong_offset

_MAX_INT_BYTES = 5
_MAX_RAW_INT = 2**32 - 1


class RecordValidation:
    """A walk over the records of one batch that refuses whatever a decoder would refuse."""

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
        """Walk the records of a batch; where bounds are given, the time of each is checked against them."""
        self._body = body
        self._base_timestamp = header.base_timestamp
        self._count = header.record_count
        self._bounds = bounds
        self._needs_keys = needs_keys
        self._at = 0
        self._index = 0
        #: The headers of the last record that are still to be checked, and where that record ends.
        self._headers_left = 0
        self._stop = 0
        #: Places of records without a key, where every record needs one.
        self.keyless: list[int] = []
        #: Places and times of records outside of the bounds.
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
        """Check records up to the first with headers; the steps that are left.

        Every record pays for this loop. Numbers of one and two bytes, which most are, are read in place.
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
            raw = body[at + 1]  # behind the attributes, which are unused
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
            # In this encoding a number is negative where its lowest bit is set, and a negative length is null.
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
        """Check headers of the last record; the steps that are left."""
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
    """The rest of a number of 32 bits whose first byte was read, still in its zigzag form; clients take five bytes."""
    start = at
    raw, at = finish_varint(body, at, raw)
    if at - start > _MAX_INT_BYTES - 1 or raw > _MAX_RAW_INT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "A variable-length number in a record is too long")
    return raw, at


def _impossible_headers(index: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch has an impossible number of headers")
