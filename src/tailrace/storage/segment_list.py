"""The segments of one log, in the order of their offsets.

Invariant: there is always at least one, and the newest takes what is appended. It must not know what is in them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tailrace.runtime.disk import Readable
from tailrace.storage.segment import Segment


class SegmentList:
    """An ordered, never empty list of segments."""

    __slots__ = ("active", "bases", "items")

    def __init__(self, segments: list[Segment]) -> None:
        #: For the path of every fetch; changed only here.
        self.items = segments
        #: The first offset of each.
        self.bases = [segment.base_offset for segment in segments]
        #: The newest, which takes appends.
        self.active = segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Segment:
        return self.items[index]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.items)

    @property
    def size_bytes(self) -> int:
        """How large they are together."""
        return sum(segment.size for segment in self.items)

    @property
    def sealed(self) -> Sequence[Segment]:
        """Every segment that nothing is appended to any more, oldest first."""
        return self.items[:-1]

    def has_sealed(self, segments: Sequence[Segment]) -> bool:
        """Whether all of these are still in the log, and closed: it may have been cut since they were looked at."""
        sealed = dict.fromkeys(map(id, self.sealed))
        return all(id(segment) in sealed for segment in segments)

    def oldest(self, most: int | None) -> Sequence[Segment]:
        """So many of the oldest."""
        return self.items[:most]

    def newer(self, index: int) -> Sequence[Segment]:
        """One segment and all after it."""
        return self.items[index:]

    def index_of(self, offset: int) -> int:
        """Which one an offset belongs to; -1 where it is below all of them."""
        return bisect_right(self.bases, offset) - 1

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """The segment that an offset belongs to and all after it; all of them where it is below."""
        return self.items[max(0, self.index_of(offset)) :]

    def of_file(self, file: Readable) -> Segment | None:
        """The segment whose log a file is, if it is still here; by its name, for there may be many."""
        stem = file.path.rpartition("/")[2].partition(".")[0]
        index = self.index_of(int(stem)) if stem.isdecimal() else -1
        segment = self.items[index] if index >= 0 else None
        return segment if segment is not None and segment.holds(file) else None

    def add(self, segment: Segment) -> None:
        """Go on in a new one."""
        self.items.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment

    def take_first(self) -> Segment:
        """Take the oldest out."""
        self.bases.pop(0)
        return self.items.pop(0)

    def end_with(self, index: int) -> None:
        """Take all out that are newer than one, which takes appends again."""
        del self.items[index + 1 :], self.bases[index + 1 :]
        self.active = self.items[index]

    def become(self, segment: Segment) -> None:
        """Have nothing but one segment."""
        self.items, self.bases = [segment], [segment.base_offset]
        self.active = segment

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one in the place of several that follow each other."""
        first = self._place_of(old)
        last = first + len(old)
        self.items[first:last] = [new]
        self.bases[first:last] = [new.base_offset]

    def require_run(self, segments: Sequence[Segment]) -> None:
        """Refuse segments that do not follow each other here, or that are not closed."""
        self._place_of(segments)

    def _place_of(self, segments: Sequence[Segment]) -> int:
        first = self.items.index(segments[0])
        if self.items[first : first + len(segments)] != list(segments) or segments[-1] is self.active:
            raise ValueError(f"segments {segments[0].base_offset} to {segments[-1].base_offset} are not in the log")
        return first
