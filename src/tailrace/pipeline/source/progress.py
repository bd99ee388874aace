"""The progress of a streaming query, shown where people look: as the offsets of a consumer group.

Owns the reading of a source's offsets and their commits. Invariant: nothing is committed that was not reported as
processed, and a failed commit is a warning and never ends a query. Spark itself continues from its checkpoint and never
from a group, so the group is only for people and their tools.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tailrace.client.groups import Groups, Place
from tailrace.errors import TailraceError

#: The offset at which each partition continues: one more than the last one read.
Offsets: TypeAlias = Mapping[Place, int]

GROUP_PREFIX = "tailrace-pipeline-"
_CLOSE_TIMEOUT = 10.0
#: The pause between a failed commit and the next.
_PAUSE = 1.0

_logger = logging.getLogger("tailrace.pipeline")


def offsets_of(source_offset: object) -> dict[Place, int]:
    """Parse the offsets in a source's own JSON, `{"orders": {"0": 42}}`; empty for another kind of source."""
    if not isinstance(source_offset, Mapping):
        return {}
    found: dict[Place, int] = {}
    for topic, partitions in source_offset.items():
        if not isinstance(partitions, Mapping):
            return {}
        for number, offset in partitions.items():
            if not str(number).isdecimal() or type(offset) is not int:
                return {}
            found[str(topic), int(number)] = offset
    return found


def lowest(each: Iterable[Offsets]) -> dict[Place, int]:
    """Return what all sources together have processed: of a topic that is read twice, the lower offset."""
    together: dict[Place, int] = {}
    for offsets in each:
        for place, offset in offsets.items():
            together[place] = min(offset, together.get(place, offset))
    return together


def processed_by(progress: Mapping[str, Any]) -> dict[Place, int]:
    """Return the offsets after the batch that a query's progress, as Spark's JSON, describes."""
    return lowest(offsets_of(source.get("endOffset")) for source in progress.get("sources", ()))


class GroupProgress:
    """Commits what a query has processed to a consumer group, on another thread, so that no batch waits."""

    def __init__(self, bootstrap: str, group: str, warn: Callable[[str], None] = _logger.warning) -> None:
        self.group = group
        self._bootstrap = bootstrap
        self._warn = warn
        self._groups: Groups | None = None
        self._committed: dict[Place, int] = {}
        self._waiting: Offsets | None = None
        self._is_closed = False
        self._last_warning = ""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"progress of {group}", daemon=True)
        self._thread.start()

    def processed(self, offsets: Offsets) -> None:
        """Commit these offsets soon; they replace those that still wait."""
        with self._changed:
            if offsets.items() <= self._committed.items():
                return
            self._waiting = dict(offsets)
            self._changed.notify()

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """End when the last processed offsets are committed, or the time is over."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
                offsets, self._waiting = self._waiting, None
            if offsets is None:
                return
            new = {place: offset for place, offset in offsets.items() if self._committed.get(place) != offset}
            is_done = self._commit(new)
            with self._changed:
                if is_done:
                    self._committed |= new
                else:
                    # A query without new records reports its offsets many times a second.
                    self._changed.wait_for(lambda: self._is_closed, _PAUSE)

    def _commit(self, offsets: dict[Place, int]) -> bool:
        try:
            if self._groups is None:
                self._groups = Groups(self._bootstrap)
            self._groups.set_offsets(self.group, offsets)
        except TailraceError as error:
            self._say(f"cannot show progress in group '{self.group}': {error}")
            return False
        self._last_warning = ""
        return True

    def _say(self, warning: str) -> None:
        """Log one line for a broker that is away for an hour, not one for each batch."""
        if warning != self._last_warning:
            self._last_warning = warning
            self._warn(warning)
