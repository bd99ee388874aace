"""Columns of numbers, and of bytes gathered from positions in a buffer.

The pieces must be in order in the buffer and not overlap. Then the pieces and the gaps between them are an Arrow array
over the buffer, and taking every second element copies the pieces at memory speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow._compute import TakeOptions, call_function

from tailrace.pipeline.arrow.varints import Numbers
from tailrace.pipeline.failures import CorruptRecordsError
from tailrace.pipeline.source.ranges import OffsetRange

#: `pyarrow.compute.take` calls this. Importing that module wraps every function, which takes longer than everything
#: else that a fresh worker needs before its first row.
_UNCHECKED = TakeOptions(boundscheck=False)


def build_binary_column(buffer: pa.Buffer, starts: Numbers, lengths: Numbers) -> pa.Array:
    """Return one value for each piece, null if its length is negative."""
    count = starts.size
    absent = lengths < 0
    some_absent = bool(absent.any())
    if not count or (some_absent and absent.all()):
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0) if some_absent else starts + lengths
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    present = _bits(~absent) if some_absent else None
    indices = build_number_column(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32(), present)
    return call_function("take", [pieces, indices], _UNCHECKED)


def build_number_column(numbers: Any, kind: pa.DataType, present: pa.Buffer | None = None) -> pa.Array:
    """Return numbers as a column of a type of the same width, null where bits of `present` are not set.

    `pyarrow.array` does the same, but first imports pandas if it is installed: a quarter of a second before the first
    row of a fresh worker, which does not need it.
    """
    return pa.Array.from_buffers(kind, numbers.size, [present, pa.py_buffer(np.ascontiguousarray(numbers))])


def build_text_column(text: str, count: int) -> pa.Array:
    """Return a column with the same text in every row; `pyarrow.scalar` imports pandas too."""
    data = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data * count)])


def build_flag_column(flags: Any) -> pa.Array:
    """Return truth values as a column, also without pandas."""
    return pa.Array.from_buffers(pa.bool_(), flags.size, [None, _bits(flags)])


def _bits(flags: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def corrupt(where: OffsetRange, why: str) -> CorruptRecordsError:
    """Return the error that the fetched bytes of a range are not a valid batch of records."""
    error = CorruptRecordsError(
        f"records of {where.topic}-{where.partition} between offsets {where.start} and {where.end} are corrupt: {why}"
    )
    error.why = why
    return error
