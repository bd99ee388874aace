"""What is counted of groups where it happens: plain numbers, for all shards of a broker together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounters:
    """Since the broker started; they only grow."""

    #: Offsets that members or administrators committed, that nobody came back for, and that were deleted.
    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    #: Classic groups: members called together, and generations whose members got their assignment.
    rebalances: int = 0
    completed_rebalances: int = 0
    #: Groups of the newer protocol: new epochs.
    consumer_rebalances: int = 0
