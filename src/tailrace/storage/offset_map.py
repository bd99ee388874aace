"""The newest offset of each key in a range of the log, in bounded memory: 24 bytes per key, whatever its length.

Keys are identified by a salted 128-bit hash, so that no client can construct a collision. The table is a flat array
that grows up to its limit. It can be written to a file and read back, so its user needs no other state.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

_HASH = struct.Struct("=QQ")
_HEAD = struct.Struct("=qqq16s")
_WORDS_PER_SLOT = 3
_WORD_BYTES = 8
SLOT_BYTES = _WORDS_PER_SLOT * _WORD_BYTES
_FIRST_SLOTS = 1024
#: A fuller table makes searches slow, and without a free slot they would never end.
_FULLEST = 0.9


class OffsetMap:
    """Newest offsets by key. The limit on keys is advisory: the map can take more."""

    def __init__(self, max_bytes: int, load_factor: float, salt: bytes) -> None:
        self._salt = salt
        self._max_slots = max(2, max_bytes // SLOT_BYTES)
        self._max_keys = max(1, int(self._max_slots * min(load_factor, _FULLEST)))
        self._count = 0
        #: All offsets up to this one are covered.
        self.latest_offset = -1
        self._slots = 0
        self._table = memoryview(b"")
        self._resize(min(_FIRST_SLOTS, self._max_slots))

    def __len__(self) -> int:
        return self._count

    def has_room_for(self, keys: int) -> bool:
        """Whether this many more keys fit within the limit."""
        return self._count + keys <= self._max_keys

    def put(self, key: bytes, offset: int) -> None:
        """Set the newest offset of a key; offsets must be added in order."""
        if self._count + 1 > self._slots * _FULLEST:
            doubled = self._slots * 2
            self._resize(min(doubled, self._max_slots) if self._slots < self._max_slots else doubled)
        high, low = _HASH.unpack(blake2b(key, digest_size=16, key=self._salt).digest())
        table = self._table
        index = self._find(high, low)
        if not table[index + 2]:
            self._count += 1
            table[index] = high
            table[index + 1] = low
        table[index + 2] = offset + 1  # zero is a free slot

    def get(self, key: bytes) -> int:
        """The newest offset of a key, or -1."""
        high, low = _HASH.unpack(blake2b(key, digest_size=16, key=self._salt).digest())
        return self._table[self._find(high, low) + 2] - 1

    def _find(self, high: int, low: int) -> int:
        """The index of a hash, or of the free slot for it."""
        table = self._table
        index = high % self._slots * _WORDS_PER_SLOT
        while table[index + 2] and (table[index] != high or table[index + 1] != low):
            index += _WORDS_PER_SLOT
            if index == len(table):
                index = 0
        return index

    def _resize(self, slots: int) -> None:
        former = self._table
        self._slots = slots
        self._table = memoryview(bytearray(slots * SLOT_BYTES)).cast("Q")
        for index in range(0, len(former), _WORDS_PER_SLOT):
            if former[index + 2]:
                place = self._find(former[index], former[index + 1])
                self._table[place : place + _WORDS_PER_SLOT] = former[index : index + _WORDS_PER_SLOT]

    def dump(self) -> bytes:
        """The whole map in the format of `load`, for this machine only."""
        return _HEAD.pack(self.latest_offset, self._count, self._slots, self._salt) + self._table.cast("B")

    @classmethod
    def load(cls, content: bytes) -> OffsetMap:
        """A map from its dump, for lookups only."""
        if len(content) < _HEAD.size:
            raise ValueError(f"an offset map of {len(content)} bytes is truncated")
        latest_offset, count, slots, salt = _HEAD.unpack_from(content)
        if len(content) != _HEAD.size + slots * SLOT_BYTES:
            raise ValueError(f"an offset map of {len(content)} bytes is truncated")
        loaded = cls(0, 1.0, salt)
        loaded.latest_offset, loaded._count, loaded._slots = latest_offset, count, slots
        loaded._table = memoryview(content)[_HEAD.size :].cast("Q")
        return loaded
