"""What a query's filters leave of a topic: partitions, a range of offsets, and a range of times.

Owns the meaning of Spark's filters for these columns. A filter here never removes a row that Spark would keep; Spark
checks every row again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAST = -(1 << 63)
_GREATEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Inclusive bounds, and sets where None means everything."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    min_offset: int = _LEAST
    max_offset: int = _GREATEST
    min_timestamp_us: int = _LEAST
    max_timestamp_us: int = _GREATEST

    @property
    def has_times(self) -> bool:
        return self.min_timestamp_us > _LEAST or self.max_timestamp_us < _GREATEST

    @property
    def times_ms(self) -> tuple[int, int]:
        """The first and the last time of records that may pass, in ms; without bounds, the extreme numbers."""
        least = -(-self.min_timestamp_us // 1000) if self.min_timestamp_us > _LEAST else _LEAST
        return least, self.max_timestamp_us // 1000 if self.max_timestamp_us < _GREATEST else _GREATEST

    def takes(self, topic: str, partition: int) -> bool:
        """True if a partition may have records that pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


def filter_for(filters: Iterable[Filter]) -> RecordFilter:
    """Combine these filters; unsupported ones leave everything."""
    left = RecordFilter()
    for one in filters:
        left = _narrow(left, one)
    return left


def _narrow(left: RecordFilter, one: Filter) -> RecordFilter:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return left
    kind = type(one).__name__
    column = attribute[0].lower()
    value = getattr(one, "value", None)
    if column == "topic":
        chosen = _chosen(kind, value, str)
        return left if chosen is None else replace(left, topics=_both(left.topics, chosen))
    if column == "partition":
        chosen = _chosen(kind, value, int)
        return left if chosen is None else replace(left, partitions=_both(left.partitions, chosen))
    if column == "offset":
        least, greatest = _bounds(kind, value, lambda number: number if type(number) is int else None)
        return replace(left, min_offset=max(left.min_offset, least), max_offset=min(left.max_offset, greatest))
    if column == "timestamp":
        least, greatest = _bounds(kind, value, _microseconds)
        return replace(
            left,
            min_timestamp_us=max(left.min_timestamp_us, least),
            max_timestamp_us=min(left.max_timestamp_us, greatest),
        )
    return left


def _chosen(kind: str, value: Any, of: type) -> frozenset[Any] | None:
    if kind in ("EqualTo", "EqualNullSafe"):
        return frozenset((value,)) if type(value) is of else None
    if kind == "In" and all(type(one) is of or one is None for one in value):
        return frozenset(one for one in value if one is not None)
    return None


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _bounds(kind: str, value: Any, number_of: Any) -> tuple[int, int]:
    if kind == "In":
        numbers = [number_of(one) for one in value if one is not None]
        if not numbers or None in numbers:
            return _LEAST, _GREATEST
        return min(numbers), max(numbers)
    number = number_of(value)
    if number is None:
        return _LEAST, _GREATEST
    if kind in ("EqualTo", "EqualNullSafe"):
        return number, number
    if kind == "GreaterThan":
        return number + 1, _GREATEST
    if kind == "GreaterThanOrEqual":
        return number, _GREATEST
    if kind == "LessThan":
        return _LEAST, number - 1
    if kind == "LessThanOrEqual":
        return _LEAST, number
    return _LEAST, _GREATEST


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
