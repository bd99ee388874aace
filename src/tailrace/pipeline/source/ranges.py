"""Ranges of offsets, one for each task, and how a limit is spread over partitions.

Pure arithmetic: every offset of the given ranges is in exactly one resulting range. It must not know brokers or Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from tailrace.model import Lineage, TopicPartition
from tailrace.pipeline.source.offsets import Offsets


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, the end exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    #: The topic with that name; None if unknown.
    lineage: Lineage | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    lineages: Mapping[str, Lineage] = MappingProxyType({}),
) -> list[OffsetRange]:
    """Return the non-empty ranges, in the order of their partitions."""
    return [
        OffsetRange(name.topic, name.partition, starts[name], end, lineages.get(name.topic))
        for name, end in sorted(ends.items())
        if starts[name] < end
    ]


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Split ranges so that none is longer than a limit and there are about as many as wanted."""
    pieces = [piece for one in ranges for piece in split_evenly(one, -(-one.size // max_records) if max_records else 1)]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(piece.size for piece in pieces)
    # A range that would not be split anyway is one task; the others share the remaining tasks.
    small = {piece for piece in pieces if _share(piece.size, total, min_partitions) <= 1}
    large_total = total - sum(piece.size for piece in small)
    wanted = min_partitions - len(small)
    return [
        part
        for piece in pieces
        for part in split_evenly(piece, 1 if piece in small else max(1, _share(piece.size, large_total, wanted)))
    ]


def _share(size: int, total: int, parts: int) -> int:
    return round(size * parts / total)


def split_evenly(one: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split a range into this many parts, or into single offsets if there are fewer."""
    parts = min(parts, one.size)
    bounds = [one.start + one.size * index // parts for index in range(parts + 1)]
    return [replace(one, start=start, end=end) for start, end in pairwise(bounds)]


def limit_ends(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Return ends that leave about `limit` offsets in all, shared in proportion to what partitions have to read."""
    sizes = {name: max(0, end - starts[name]) for name, end in ends.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    limited = {}
    for name, end in ends.items():
        # A share below one offset is rounded up: a partition with little to read must not wait for ever.
        share = sizes[name] * limit // total or min(1, sizes[name])
        limited[name] = starts[name] + share if sizes[name] else end
    return limited
