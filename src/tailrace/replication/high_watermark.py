"""High watermarks on disk, in Kafka's `replication-offset-checkpoint`: what replicas know to be committed at a start.

Only of partitions with several replicas: where there is one, what its log promises is committed. A value that is too
low costs nothing but time, until followers have fetched; one that is too high is cut to the log's end when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.model import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.storage.log_directory import LogDirectory


async def save_high_watermarks(partitions: Iterable[Partition]) -> None:
    """Write down the high watermarks of partitions, one file in each log directory that has news."""
    by_directory: dict[LogDirectory, dict[TopicPartition, int]] = {}
    for partition in partitions:
        if partition.is_replicated and partition.directory.failure is None:
            by_directory.setdefault(partition.directory, {})[partition.partition] = partition.high_watermark
    for directory, offsets in by_directory.items():
        await directory.save_high_watermarks(offsets)
