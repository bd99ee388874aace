"""Spark's part of a compaction: one task for each merged file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.archive.compaction import Merge, write_merged
from tailrace.archive.location import open_location
from tailrace.archive.manifest import ArchivedFile, Snapshot
from tailrace.pipeline.spark.errors import in_users_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipeline.archiving.compacting import Merger


@dataclass(frozen=True, slots=True)
class _MergeTask:
    """Writes the file of one merge; only knows the archive's identity and location."""

    uri: str
    identity: Snapshot

    def __call__(self, merge: Merge) -> ArchivedFile:
        location = open_location(self.uri)
        try:
            return write_merged(location, self.identity, merge)
        finally:
            location.close()


def merger_on(spark: SparkSession, uri: str) -> Merger:
    """Return a function that merges files on Spark, as many at a time as it has cores."""

    def merge(snapshot: Snapshot, merges: Sequence[Merge]) -> list[ArchivedFile]:
        task = _MergeTask(uri, Snapshot(snapshot.topic, snapshot.lineage))
        with in_users_words():
            return spark.sparkContext.parallelize(merges, len(merges)).map(task).collect()

    return merge
