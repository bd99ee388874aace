"""The column of record headers: for each record a list of names and values, or null if it has none and null is allowed.

Works in rounds: the first header of all records that have one, then the second, and so on, each round for all its
records at once. Bytes are untrusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.archive import header_names
from tailrace.pipeline.arrow.columns import build_binary_column, build_flag_column, build_number_column, corrupt
from tailrace.pipeline.arrow.varints import Numbers, read_varints
from tailrace.pipeline.source.ranges import OffsetRange


def build_header_column(
    where: OffsetRange, field: pa.Field, buffer: pa.Buffer, data: Any, at: Numbers, ends: Numbers
) -> pa.Array:
    """Build the headers of records; their number is at `at`, and they end where the record ends.

    A nullable field is for people and their queries: names that are not text are made readable. A field that is not
    nullable is for files of an archive, from which the original bytes can be restored.
    """
    counts, at = read_varints(data, at)
    if not ((counts >= 0) & (at <= ends) & (counts <= ends - at)).all():
        raise corrupt(where, "a record has an impossible number of headers")
    bounds = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    names_at, names, values_at, values = (np.empty(total, dtype=np.int64) for _ in range(4))
    records = np.flatnonzero(counts)
    at = at.copy()
    number = 0
    while records.size:
        here = bounds[records] + number
        stop = ends[records]
        length, position = read_varints(data, at[records])
        after = position + length
        if not ((length >= 0) & (position <= stop) & (after < stop)).all():
            raise corrupt(where, "the name of a header exceeds its record")
        names_at[here], names[here] = position, length
        length, position = read_varints(data, after)
        after = position + np.maximum(length, 0)
        if not ((position <= stop) & (after <= stop)).all():
            raise corrupt(where, "the value of a header exceeds its record")
        values_at[here], values[here] = position, length
        at[records] = after
        number += 1
        records = records[counts[records] > number]
    if not (at == ends).all():
        raise corrupt(where, "the length of a record is wrong")
    names_column = build_binary_column(buffer, names_at, names)
    pairs = pa.StructArray.from_arrays(
        [
            header_names.readable(names_column) if field.nullable else header_names.stored(names_column),
            build_binary_column(buffer, values_at, values),
        ],
        fields=list(field.type.value_type),
    )
    offsets = build_number_column(bounds.astype(np.int32), pa.int32())
    mask = build_flag_column(counts == 0) if field.nullable else None
    return pa.ListArray.from_arrays(offsets, pairs, type=field.type, mask=mask)
