"""Counters of groups: plain numbers, for all shards of a broker together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounters:
    """Counters since the broker started."""

    #: Offsets that were committed, that expired, and that were deleted.
    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    #: Classic groups: rebalances that started, and generations whose members got their assignment.
    rebalances: int = 0
    completed_rebalances: int = 0
    #: Groups of the newer protocol: new target assignments.
    consumer_rebalances: int = 0
