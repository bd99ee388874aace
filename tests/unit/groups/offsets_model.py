"""What the records of an offsets topic mean, said once for the whole log and not record by record.

In each place the last record that is in effect counts: one without a transaction, or one whose producer's next marker
is a commit. A removal leaves nothing of what is before it in the log. A record without a marker behind it is pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tailrace.model import TopicPartition

#: A group and a partition.
Place: TypeAlias = tuple[str, TopicPartition]


class Entry(NamedTuple):
    """A record or a marker, in a log from which compaction may have removed others."""

    at: int
    place: Place | None = None
    #: None removes the offset.
    offset: int | None = None
    producer_id: int | None = None
    #: A marker, which has no place.
    is_commit: bool | None = None


def decision(log: Sequence[Entry], entry: Entry) -> bool | None:
    """Whether a record of a transaction was committed; None while that is open."""
    for later in log:
        if later.at > entry.at and later.place is None and later.producer_id == entry.producer_id:
            return later.is_commit
    return None


def _since_removal(log: Sequence[Entry]) -> list[Entry]:
    removed = {entry.place: entry.at for entry in log if entry.place is not None and entry.offset is None}
    return [entry for entry in log if entry.place is not None and entry.at > removed.get(entry.place, -1)]


def committed_of(log: Sequence[Entry]) -> dict[Place, Entry]:
    """The record that is in effect in each place."""
    return {
        entry.place: entry
        for entry in _since_removal(log)
        if entry.place is not None and (entry.producer_id is None or decision(log, entry))
    }


def pending_of(log: Sequence[Entry]) -> dict[Place, dict[int, int]]:
    """The offsets that wait for the end of a transaction, by place and producer."""
    found: dict[Place, dict[int, int]] = {}
    for entry in _since_removal(log):
        if entry.producer_id is not None and decision(log, entry) is None:
            assert entry.place is not None
            assert entry.offset is not None
            found.setdefault(entry.place, {})[entry.producer_id] = entry.offset
    return found


def compacted(log: Sequence[Entry], limit: int, *, keeps_removals: bool) -> list[Entry]:
    """The log after compaction below a limit, and below the first record of an open transaction."""
    stable = min(
        (e.at for e in log if e.producer_id is not None and e.place and decision(log, e) is None), default=limit
    )
    limit = min(limit, stable)
    decided = [
        entry
        for entry in log
        if entry.at < limit and entry.place and (entry.producer_id is None or decision(log, entry))
    ]
    last = {entry.place: entry.at for entry in decided}
    kept = {entry.at for entry in decided if last[entry.place] == entry.at}
    if not keeps_removals:
        kept -= {entry.at for entry in decided if entry.offset is None}
    return [entry for entry in log if entry.at >= limit or entry.at in kept or entry.place is None]
