"""Counters of transactions: plain numbers, for all shards of a broker together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionCounters:
    """Counters since the broker started."""

    #: Transactions that ended in every partition.
    committed: int = 0
    aborted: int = 0
    #: Aborts by force: the transaction took too long, or another producer took its transactional id.
    timed_out: int = 0
    taken_over: int = 0
    #: Transactional ids that expired.
    expired: int = 0
    #: Markers that leaders of partitions confirmed, and those that have to be sent again.
    markers_written: int = 0
    markers_retried: int = 0
