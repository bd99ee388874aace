"""The latest value of each key in a topic's archive, as a separate Parquet table.

Each is written once, to a directory named after the archive's version, and is complete when `_offsets.json` is there,
which says what it covers. The record with the highest offset of a key counts; if a key is in several partitions, the
one with the latest time. Keys whose last value is null, and records without a key, are omitted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.archive.manifest import Snapshot
from tailrace.client.archive import ArchiveStatus
from tailrace.pipeline.jobs.checkpoints import absolute
from tailrace.pipeline.replay.source import Span
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.schema import COLUMNS, HEADERS, spark_schema
from tailrace.pipeline.spark.errors import in_users_words
from tailrace.storage.checkpoints import encode_uuid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COVERAGE = "_offsets.json"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
#: The columns of a table beside the key.
_COLUMNS = ("value", HEADERS, "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """A table of latest values, and what it covers."""

    path: str
    keys: int
    #: The covered offsets of each partition, the end exclusive.
    coverage: dict[int, tuple[int, int]]
    #: Whether it existed already.
    was_there: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as a JSON object."""
        coverage = {str(number): list(span) for number, span in sorted(self.coverage.items())}
        return {"path": self.path, "keys": self.keys, "partitions": coverage}


def write_key_snapshot(spark: SparkSession, status: ArchiveStatus, snapshot: Snapshot, uri: str) -> KeySnapshot:
    """Write the latest values of an archive to a directory that Spark can write to; once for each version."""
    path = f"{absolute(uri).rstrip('/')}/topic={snapshot.topic}/version={snapshot.version}"
    coverage = {
        number: (max(start, status.deleted_below.get(number, 0)), end)
        for number, (start, end) in snapshot.coverage.items()
        if max(start, status.deleted_below.get(number, 0)) < end
    }
    with in_users_words():
        session = spark.newSession()
        if str(spark.sparkContext.master).startswith("local"):
            session.conf.set(_SHUFFLE_PARTITIONS, str(spark.sparkContext.defaultParallelism))
        kept = _read_text(session, f"{path}/{_COVERAGE}")
        if kept is not None:
            return KeySnapshot(path, int(json.loads(kept)["keys"]), coverage, was_there=True)
        table = latest_values(_records(session, _spans(status.uri, snapshot, coverage)))
        table.write.mode("overwrite").parquet(path)
        written = KeySnapshot(path, session.read.parquet(path).count(), coverage)
        document = {
            "topic": snapshot.topic,
            "topic_id": encode_uuid(snapshot.lineage),
            "archive_version": snapshot.version,
            "keys": written.keys,
            "partitions": written.as_json()["partitions"],
        }
        _write_text(session, f"{path}/{_COVERAGE}", json.dumps(document) + "\n")
    return written


def latest_values(records: DataFrame) -> DataFrame:
    """Return the last record of each key that has a value, from records with the columns of a topic."""
    from pyspark.sql import functions as F

    in_partition = (
        records.where("key IS NOT NULL")
        .groupBy("partition", "key")
        .agg(F.max_by(F.struct("value", HEADERS, "offset", "timestamp"), "offset").alias("last"))
        .select("key", "partition", "last.*")
    )
    latest = in_partition.groupBy("key").agg(
        F.max_by(F.struct(*_COLUMNS), F.struct("timestamp", "partition")).alias("last")
    )
    return latest.select("key", "last.*").where("value IS NOT NULL")


def _spans(uri: str, snapshot: Snapshot, coverage: dict[int, tuple[int, int]]) -> list[Span]:
    """Return a task for each file: the order of reading does not matter."""
    return [
        Span(
            OffsetRange(snapshot.topic, number, max(start, file.first_offset), file.next_offset),
            uri,
            snapshot.directory,
            (file,),
            file.next_offset,
        )
        for number, (start, end) in sorted(coverage.items())
        for file in snapshot.partition(number).files_between(start, end)
    ]


def _records(session: SparkSession, spans: list[Span]) -> DataFrame:
    from tailrace.pipeline.replay.tasks import ReadTask

    read = ReadTask(tuple(spans), None)
    numbers = session.range(0, len(spans), 1, max(1, len(spans)))
    return numbers.mapInArrow(read.__call__, spark_schema(COLUMNS))


def _read_text(session: SparkSession, path: str) -> str | None:
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(place):
        return None
    stream = files.open(place)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def _write_text(session: SparkSession, path: str, text: str) -> None:
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    stream = place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).create(place, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
