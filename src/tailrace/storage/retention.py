"""Decides which segments of one log have expired: by age, by the log's size, or because they are below its start.

Invariants: a segment stays while it is needed, because it is not committed, or not archived where it must be; a segment
leaves the log only once the log start after it is durable.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tailrace.model import NO_TIMESTAMP
from tailrace.runtime.clock import Clock
from tailrace.storage.segment import CorruptSegmentError, Segment

if TYPE_CHECKING:
    from tailrace.storage.partition_log import PartitionLog

logger = logging.getLogger("tailrace.storage")


class Retention:
    """The retention of one log."""

    __slots__ = ("_clock", "_log", "waits_for_archive", "waits_for_start")

    def __init__(self, log: PartitionLog, clock: Clock) -> None:
        #: Whether, at the last check, the oldest segment only had to be archived to be removed.
        self.waits_for_archive = False
        #: Whether, at the last check, segments only waited for a durable log start to be removed.
        self.waits_for_start = False
        self._log = log
        self._clock = clock

    def expired(self, limit_offset: int, archived_offset: int | None, most: int | None) -> list[Segment]:
        """The segments that can be removed now, oldest first."""
        log = self._log
        now_ms = self._clock.wall_ms()
        total = log.segments.size_bytes
        start_offset = log.start_offset
        expired: list[Segment] = []
        self.waits_for_archive = False
        for index, segment in enumerate(log.segments.oldest(most)):
            if not self._is_expired(index, limit_offset, start_offset, now_ms, total):
                break
            if archived_offset is not None and segment.end_offset > max(archived_offset, start_offset):
                self.waits_for_archive = True
                break
            expired.append(segment)
            total -= segment.size
            start_offset = max(start_offset, segment.end_offset)
        metadata = log.metadata
        if metadata is None or not expired or metadata.allows_start_at(expired[-1].end_offset):
            return expired
        metadata.move_start(max(metadata.first_offset or 0, expired[-1].end_offset))
        self.waits_for_start = True
        return [segment for segment in expired if metadata.allows_start_at(segment.end_offset)]

    def _is_expired(self, index: int, limit_offset: int, start_offset: int, now_ms: int, total_bytes: int) -> bool:
        """Whether a segment has expired by age, by size, or by the log start."""
        config, segments = self._log.config, self._log.segments
        segment = segments[index]
        if segment.end_offset > limit_offset or segment.end_offset == segment.base_offset:
            return False
        if segment.end_offset <= start_offset:
            return True
        if not config.delete_expired:
            return False
        if segment is not segments.active and 0 <= config.retention_bytes <= total_bytes - segment.size:
            return True
        if config.retention_ms < 0:
            return False
        newest_ms = self._newest_timestamp(index)
        return newest_ms >= 0 and now_ms - newest_ms > config.retention_ms

    def _newest_timestamp(self, index: int) -> int:
        """The newest timestamp of a segment or, if it is damaged or empty after compaction, of the next one."""
        for segment in self._log.segments.newer(index):
            try:
                if (newest_ms := segment.max_timestamp) >= 0:
                    return newest_ms
            except CorruptSegmentError as error:
                logger.error("%s: retention uses the time of the next segment: %s", self._log.partition, error)
        return NO_TIMESTAMP
