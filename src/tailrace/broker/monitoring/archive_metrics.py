"""Metrics of archives: their lag, and the reads from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.broker.fetching.archive_reads import ArchiveReads
from tailrace.broker.monitoring.exposition import Sample, labels
from tailrace.broker.monitoring.metric import Metric, Samples, counter, gauge, one
from tailrace.broker.monitoring.observed import Look
from tailrace.broker.upkeep.archive_watch import ArchiveLag


def _lags(value: Callable[[ArchiveLag], int]) -> Samples:
    def samples(look: Look) -> Iterator[Sample]:
        for topic, lag in look.observed.archive_watch.lags.items():
            yield Sample(labels(topic=topic), value(lag))

    return samples


def _ends(look: Look) -> Iterator[Sample]:
    for partition in look.observed.partitions:
        if partition.log.config.is_archived:
            topic, number = partition.partition
            yield Sample(labels(topic=topic, partition=number), partition.archived_end)


def _quarantined(look: Look) -> Iterator[Sample]:
    for topic, batches in look.observed.archive_watch.quarantined.items():
        yield Sample(labels(topic=topic), batches)


def _dropped(look: Look) -> Iterator[Sample]:
    traffic = look.observed.partitions.traffic
    yield Sample("", traffic.total().dropped_unarchived)
    for topic, of_topic in traffic:
        if of_topic.dropped_unarchived:
            yield Sample(labels(topic=topic), of_topic.dropped_unarchived)


def _reads(value: Callable[[ArchiveReads], int]) -> Samples:
    return one(lambda look: value(look.observed.archive_reads))


ARCHIVE_METRICS: tuple[Metric, ...] = (
    gauge(
        "tailrace_archive_lag_offsets",
        "Committed records that are not archived yet, in an archived topic's partitions that this broker leads.",
        _lags(lambda lag: lag.offsets),
        "topic",
    ),
    gauge(
        "tailrace_archive_lag_ms",
        "Age of the oldest record that is not archived yet, by its timestamp, in an archived topic's "
        "partitions that this broker leads.",
        _lags(lambda lag: lag.oldest_ms),
        "topic",
    ),
    gauge(
        "tailrace_archive_end_offset",
        "The offset up to which a partition is archived.",
        _ends,
        "topic",
        "partition",
    ),
    gauge(
        "tailrace_archive_held_partitions",
        "Partitions that this broker leads and refuses writes to because their disk is almost full and their "
        "archive is behind.",
        one(lambda look: look.observed.archive_watch.held_count),
    ),
    gauge(
        "tailrace_archive_unreadable_topics",
        "Archived topics of this broker whose archive it cannot read; it removes nothing of them from its disk.",
        one(lambda look: look.observed.archive_watch.unreadable_count),
    ),
    gauge(
        "tailrace_archive_quarantined_batches",
        "Batches in the archive of a topic of this broker that cannot be decoded and are kept as they were produced.",
        _quarantined,
        "topic",
    ),
    counter(
        "tailrace_archive_dropped_records_total",
        "Records that retention removed before they were archived, because of tailrace.archive.lag.policy=drop.",
        _dropped,
        "topic",
    ),
    counter(
        "tailrace_archive_reads_total",
        "Reads of records from archives.",
        _reads(lambda reads: reads.reads),
    ),
    counter(
        "tailrace_archive_read_bytes_total",
        "Bytes of record batches that were built from archives for clients.",
        _reads(lambda reads: reads.bytes_read),
    ),
    counter(
        "tailrace_archive_searches_total",
        "Searches by time in archives.",
        _reads(lambda reads: reads.searches),
    ),
    counter(
        "tailrace_archive_read_failures_total",
        "Failed reads and searches of archives; clients retry.",
        _reads(lambda reads: reads.failures),
    ),
    gauge(
        "tailrace_archive_reads_waiting",
        "Reads of archives that are running or waiting for their turn.",
        _reads(lambda reads: reads.waiting),
    ),
)
