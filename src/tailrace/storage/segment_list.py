"""The segments of one log, ordered by offset.

Invariant: the list is never empty, and the newest segment takes appends. It knows nothing of their content.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tailrace.runtime.disk import Readable
from tailrace.storage.segment import Segment


class SegmentList:
    """An ordered, non-empty list of segments."""

    __slots__ = ("active", "bases", "items")

    def __init__(self, segments: list[Segment]) -> None:
        #: Read directly on every fetch; changed only in this class.
        self.items = segments
        #: The base offset of each segment.
        self.bases = [segment.base_offset for segment in segments]
        #: The newest segment, which takes appends.
        self.active = segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Segment:
        return self.items[index]

    @property
    def count(self) -> int:
        """The number of segments."""
        return len(self.items)

    @property
    def size_bytes(self) -> int:
        """The total size of all log files."""
        return sum(segment.size for segment in self.items)

    @property
    def sealed(self) -> Sequence[Segment]:
        """All segments except the active one, oldest first."""
        return self.items[:-1]

    def has_sealed(self, segments: Sequence[Segment]) -> bool:
        """Whether all of these are still in the log and sealed; a truncation may have changed that."""
        sealed = dict.fromkeys(map(id, self.sealed))
        return all(id(segment) in sealed for segment in segments)

    def oldest(self, most: int | None) -> Sequence[Segment]:
        """The oldest segments, at most `most`."""
        return self.items[:most]

    def newer(self, index: int) -> Sequence[Segment]:
        """The segment at an index and all after it."""
        return self.items[index:]

    def index_of(self, offset: int) -> int:
        """The index of the segment that an offset belongs to; -1 if it is below all of them."""
        return bisect_right(self.bases, offset) - 1

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """The segment that an offset belongs to and all after it; all of them if it is below the first."""
        return self.items[max(0, self.index_of(offset)) :]

    def of_file(self, file: Readable) -> Segment | None:
        """The segment with this log file, if it is still in the list; found by its name, as there may be many."""
        stem = file.path.rpartition("/")[2].partition(".")[0]
        index = self.index_of(int(stem)) if stem.isdecimal() else -1
        segment = self.items[index] if index >= 0 else None
        return segment if segment is not None and segment.holds(file) else None

    def add(self, segment: Segment) -> None:
        """Append a segment, which becomes the active one."""
        self.items.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment

    def take_first(self) -> Segment:
        """Remove and return the oldest segment."""
        self.bases.pop(0)
        return self.items.pop(0)

    def end_with(self, index: int) -> None:
        """Remove all segments after this one, which becomes the active one again."""
        del self.items[index + 1 :], self.bases[index + 1 :]
        self.active = self.items[index]

    def become(self, segment: Segment) -> None:
        """Replace all segments with one."""
        self.items, self.bases = [segment], [segment.base_offset]
        self.active = segment

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace several adjacent segments with one."""
        first = self._place_of(old)
        last = first + len(old)
        self.items[first:last] = [new]
        self.bases[first:last] = [new.base_offset]

    def require_run(self, segments: Sequence[Segment]) -> None:
        """Raise ValueError unless these segments are adjacent in the log and sealed."""
        self._place_of(segments)

    def _place_of(self, segments: Sequence[Segment]) -> int:
        first = self.items.index(segments[0])
        if self.items[first : first + len(segments)] != list(segments) or segments[-1] is self.active:
            raise ValueError(f"segments {segments[0].base_offset} to {segments[-1].base_offset} are not in the log")
        return first
