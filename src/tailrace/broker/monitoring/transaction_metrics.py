"""Metrics of transactions: what is open on this broker, how it ends, and the markers that end it.

A broker shows the transactional ids that it coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.broker.monitoring.exposition import Sample
from tailrace.broker.monitoring.metric import Metric, Samples, counter, gauge, one
from tailrace.broker.monitoring.observed import Look
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.shard import TransactionShard

_PER_SECOND_MS = 1000


def _sum(value: Callable[[TransactionShard], int]) -> Samples:
    return one(lambda look: sum(value(shard) for shard in look.observed.transactions))


def _oldest(look: Look) -> Iterator[Sample]:
    starts = [start for shard in look.observed.transactions if (start := shard.oldest_start_ms) is not None]
    if starts:
        yield Sample("", min(starts) / _PER_SECOND_MS)


def _counted(value: Callable[[TransactionCounters], int]) -> Samples:
    return one(lambda look: value(look.observed.transactions.counters))


TRANSACTION_METRICS: tuple[Metric, ...] = (
    gauge(
        "tailrace_transactional_ids",
        "Transactional ids that this broker coordinates.",
        _sum(lambda shard: shard.id_count),
    ),
    gauge(
        "tailrace_transactions_open",
        "Transactions that have begun and not ended in every partition.",
        _sum(lambda shard: shard.open_count),
    ),
    gauge(
        "tailrace_transactions_ending",
        "Open transactions whose outcome is decided, and that wait until every partition has its marker.",
        _sum(lambda shard: shard.ending_count),
    ),
    gauge(
        "tailrace_transactions_oldest_start_timestamp_seconds",
        "When the oldest open transaction began, in seconds since 1970; missing if none is open. Readers of committed "
        "records wait for it.",
        _oldest,
    ),
    counter(
        "tailrace_transactions_committed_total",
        "Transactions that were committed, in every partition.",
        _counted(lambda counters: counters.committed),
    ),
    counter(
        "tailrace_transactions_aborted_total",
        "Transactions that were aborted, in every partition, by their producers or by force.",
        _counted(lambda counters: counters.aborted),
    ),
    counter(
        "tailrace_transactions_timed_out_total",
        "Transactions that were aborted because they took longer than their timeout.",
        _counted(lambda counters: counters.timed_out),
    ),
    counter(
        "tailrace_transactions_taken_over_total",
        "Transactions that were aborted because another producer took the transactional id.",
        _counted(lambda counters: counters.taken_over),
    ),
    counter(
        "tailrace_transactional_ids_expired_total",
        "Transactional ids that expired after transactional.id.expiration.ms.",
        _counted(lambda counters: counters.expired),
    ),
    counter(
        "tailrace_transaction_markers_written_total",
        "Markers that leaders of partitions confirmed, one for each partition of a transaction.",
        _counted(lambda counters: counters.markers_written),
    ),
    counter(
        "tailrace_transaction_markers_retried_total",
        "Markers that had to be sent again.",
        _counted(lambda counters: counters.markers_retried),
    ),
)
