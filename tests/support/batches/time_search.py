"""Searches of a log by time, for tests without an event loop: of small batches, which are looked through at once."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from tailrace.runtime.long_work import LongWork
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.timestamp_search import TimestampedOffset

T = TypeVar("T")


def offset_for_timestamp(log: PartitionLog, timestamp: int, limit_offset: int) -> TimestampedOffset:
    return _at_once(log.offset_for_timestamp(timestamp, limit_offset, LongWork()))


def offset_of_max_timestamp(log: PartitionLog, limit_offset: int) -> TimestampedOffset:
    return _at_once(log.offset_of_max_timestamp(limit_offset, LongWork()))


def _at_once(search: Coroutine[Any, Any, T]) -> T:
    try:
        search.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("the search waits for something")
