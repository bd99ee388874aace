"""The transactions of one log that hold back its last stable offset.

These are the open ones, and those whose marker is in the log but not committed yet: a new leader could be missing that
marker, and readers must not see their transaction end twice. Invariant: the result never lies above the first offset
of a transaction that may still be open. Every question takes constant time on average.
"""

from __future__ import annotations

from collections import deque

#: No transaction holds anything back: larger than any offset.
UNBOUNDED = 1 << 63
#: Maximum number of ended transactions that are kept apart; beyond it, neighbours count as one.
_MOST_ENDED = 4096


class OpenTransactions:
    """The open transactions, and those whose end is not committed yet."""

    __slots__ = ("_ended", "_open", "first_open", "is_idle")

    def __init__(self) -> None:
        # By producer. In the order of their first offsets, because each begins at the log end.
        self._open: dict[int, int] = {}
        # The offsets of markers, and how far back the last stable offset stays until they are committed. Both grow.
        self._ended: deque[tuple[int, int]] = deque()
        #: The smallest first offset of an open transaction; UNBOUNDED if there is none.
        self.first_open = UNBOUNDED
        #: Whether no transaction holds anything back; an attribute because every read asks.
        self.is_idle = True

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A producer's transaction begins at an offset."""
        self._open[producer_id] = first_offset
        self.is_idle = False
        self.first_open = min(self.first_open, first_offset)

    def end(self, producer_id: int, marker_offset: int) -> int | None:
        """A marker ends a producer's transaction: returns its first offset, or None if none was open."""
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return None
        if first_offset == self.first_open:
            self.first_open = next(iter(self._open.values()), UNBOUNDED)
        ended = self._ended
        while ended and ended[-1][1] >= first_offset:
            ended.pop()  # the new one is committed later and holds back more
        ended.append((marker_offset, first_offset))
        if len(ended) > _MOST_ENDED:
            self._ended = deque([(ended[at + 1][0], ended[at][1]) for at in range(0, len(ended) - 1, 2)])
            if len(ended) % 2:
                self._ended.append(ended[-1])
        return first_offset

    def first_unstable(self, high_watermark: int) -> int:
        """The smallest first offset of a transaction without a committed end; UNBOUNDED if there is none."""
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        if ended:
            return min(ended[0][1], self.first_open)
        self.is_idle = not self._open
        return self.first_open

    def below(self, offset: int) -> OpenTransactions:
        """The state of a log that ends at an offset, above all markers."""
        state = OpenTransactions()
        for producer_id, first_offset in self._open.items():
            if first_offset < offset:
                state.begin(producer_id, first_offset)
        state._ended.extend(self._ended)
        state.is_idle = not state._open and not state._ended
        return state
