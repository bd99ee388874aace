"""Variable-length numbers of records, read at many positions at once.

Only arithmetic. A position beyond the bytes returns some number and no error: the caller must compare the returned
positions with their upper limits.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]

#: The most bytes of a 64-bit number.
_MAX_BYTES = 10
#: A position beyond every end.
_NOWHERE = 1 << 62


def read_varints(data: Bytes, positions: Numbers) -> tuple[Numbers, Numbers]:
    """Return the signed number at each position, and the position behind it; numbers that are too long end nowhere."""
    raw = data.take(positions, mode="clip").astype(np.int64)
    after = positions + 1
    more = np.flatnonzero(raw > 127)
    if more.size == raw.size:
        # Most often all numbers have a second byte or none has: without an index this takes half the time.
        raw &= 127
        following = data.take(after, mode="clip").astype(np.int64)
        after += 1
        raw |= (following & 127) << 7
        more = np.flatnonzero(following > 127)
        shift = 14
    elif more.size:
        raw[more] &= 127
        shift = 7
    while more.size:
        if shift >= 7 * _MAX_BYTES:
            after[more] = _NOWHERE
            break
        following = data.take(after[more], mode="clip").astype(np.int64)
        after[more] += 1
        raw[more] |= (following & 127) << shift
        more = more[following > 127]
        shift += 7
    # Zigzag, with a shift that ignores the sign: the encoding's 64th bit belongs to the number.
    return (raw >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), after
