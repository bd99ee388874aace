"""Chooses the partition of each row: the one that it names, the one of its key's hash, or the next in turn.

Keys go to the same partitions as with Kafka's Java client (murmur2), computed a whole column at a time. As there, rows
without a key go to one partition for about a batch and then to the next. This module must not know brokers or Spark.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.pipeline.arrow.record_encoding import Numbers, RowError

Hashes = npt.NDArray[np.uint32]

#: The bytes that go to one partition before rows without a key go to the next: Java's batch.size.
STICKY_BYTES = 16384

_SEED = 0x9747B28C
_MULTIPLIER = np.uint32(0x5BD1E995)


def murmur2_column(keys: pa.Array) -> Hashes:
    """Return Kafka's murmur2 of each value of a column of bytes with 64-bit offsets; nulls get an arbitrary hash."""
    offsets = np.frombuffer(keys.buffers()[1], np.int64, len(keys) + 1, keys.offset * 8)
    first, end = int(offsets[0]), int(offsets[-1])
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    # A copy that is a word longer, so that the last few bytes can be read as a whole word.
    data = np.zeros(end - first + 4, np.uint8)
    if end > first:
        data[:-4] = np.frombuffer(keys.buffers()[2], np.uint8, end - first, first)
    words = np.ndarray((len(data) - 3,), np.dtype("<u4"), data, 0, (1,))
    state = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    whole = lengths >> 2
    for step in range(int(whole.max(initial=0))):
        rows = slice(None) if (whole > step).all() else np.nonzero(whole > step)[0]
        word = words[starts[rows] + 4 * step] * _MULTIPLIER
        word ^= word >> np.uint32(24)
        word *= _MULTIPLIER
        state[rows] = (state[rows] * _MULTIPLIER) ^ word
    left = lengths & 3
    rows = np.nonzero(left)[0]
    if len(rows):
        tail = words[(starts + 4 * whole)[rows]] & ((np.uint32(1) << (8 * left[rows]).astype(np.uint32)) - np.uint32(1))
        state[rows] = (state[rows] ^ tail) * _MULTIPLIER
    state = (state ^ (state >> np.uint32(13))) * _MULTIPLIER
    return state ^ (state >> np.uint32(15))


class Turns:
    """The partition whose turn it is for rows without a key, in one topic."""

    def __init__(self, first: int | None = None) -> None:
        self._next = random.randrange(1 << 20) if first is None else first

    def assign(self, sizes: Numbers, partitions: int) -> Numbers:
        """Return a partition for each row, in runs of about a batch; the next call begins with the next partition."""
        total = int(sizes.sum())
        # Runs grow with the amount of data, so that each partition gets one large batch and not many small ones.
        run_bytes = max(STICKY_BYTES, -(-total // partitions))
        runs = (np.cumsum(sizes) - sizes) // run_bytes
        chosen = (self._next + runs) % partitions
        self._next = (self._next + int(runs[-1]) + 1) % partitions
        return chosen.astype(np.int64)


def choose_partitions(
    keys: pa.Array | None, named: pa.Array | None, sizes: Numbers, partitions: int, topic: str, turns: Turns
) -> Numbers:
    """Return a partition of the topic for each row, given its optional columns."""
    count = len(sizes)
    given: Numbers | None = None
    if named is not None and named.null_count < count:
        given = named.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        _check_range(given, named, partitions, topic)
        if not named.null_count:
            return given
    if partitions == 1:
        chosen = np.zeros(count, np.int64)
    else:
        chosen = _by_key(keys, sizes, partitions, turns)
    return chosen if given is None else np.where(given >= 0, given, chosen).astype(np.int64)


def _by_key(keys: pa.Array | None, sizes: Numbers, partitions: int, turns: Turns) -> Numbers:
    if keys is None or keys.null_count == len(keys):
        return turns.assign(sizes, partitions)
    chosen = ((murmur2_column(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int64)
    if keys.null_count:
        without = keys.is_null().to_numpy(zero_copy_only=False)
        chosen[without] = turns.assign(sizes[without], partitions)
    return chosen


def _check_range(given: Numbers, named: pa.Array, partitions: int, topic: str) -> None:
    wrong = (given >= partitions) | (given < 0)
    if named.null_count:
        wrong &= ~named.is_null().to_numpy(zero_copy_only=False)
    if wrong.any():
        raise RowError(
            f"a row names partition {int(given[wrong][0])}, but topic '{topic}' has partitions 0 to {partitions - 1}"
        )
