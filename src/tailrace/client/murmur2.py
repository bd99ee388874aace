"""Kafka's murmur2 hash, and the partition that it gives a key.

All clients that hash keys this way send a key to the same partition, in any language. Must not know connections or
records.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash as a signed integer, as Kafka's Java client computes it."""
    length = len(data)
    whole = length & ~3
    state = (_SEED ^ length) & _MASK
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if whole < length:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ (state >> 13)) * _MULTIPLIER & _MASK
    state ^= state >> 15
    return state - (1 << 32) if state >> 31 else state


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition that a key belongs to in a topic with this number of partitions."""
    if partitions < 1:
        raise ValueError(f"a topic must have at least one partition, not {partitions}")
    return (murmur2(key) & 0x7FFFFFFF) % partitions
