"""A replay: sends a range of a topic or an archive to another topic, batch by batch.

Invariants: one task at a time writes the records of a source partition, in order; progress is stored only when
everything before it is acknowledged; nothing is written before the filter is known to be valid. What a crash interrupts
is written again from the last checkpoint on: at least once. It must not know how lines are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, Any

from tailrace.client.cluster import describe_cluster
from tailrace.errors import ConfigError
from tailrace.model import TopicPartition
from tailrace.pipeline.arrow.formats import decode, read_schema
from tailrace.pipeline.jobs.batches import Pace, span
from tailrace.pipeline.jobs.checkpoints import absolute, default_root, location
from tailrace.pipeline.jobs.run import Stop
from tailrace.pipeline.replay.checkpoint import Progress, ReplayCheckpoint
from tailrace.pipeline.replay.plan import Replay, Target, check_target, find_target, ranges_of
from tailrace.pipeline.replay.rate_limit import RateLimit
from tailrace.pipeline.replay.source import ArchiveSource, Source, Span, TopicSource, is_archive_uri
from tailrace.pipeline.sink.settings import write_settings
from tailrace.pipeline.source.ranges import limit_ends, ranges_between
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tailrace.pipeline.spark.errors import in_users_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The longest time before a signal is noticed.
_SLICE = 0.2


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A finished batch of a replay."""

    number: int
    #: The number of its offsets, and of the records that were written.
    offsets: int
    records: int
    duration_ms: int
    #: Offsets that are still to be read.
    left: int
    eta_seconds: float | None

    @property
    def records_per_second(self) -> float:
        return self.records * 1000 / max(1, self.duration_ms)

    def as_json(self, replay: Replay) -> dict[str, Any]:
        """Return the batch as a JSON object."""
        return {
            "source": replay.source,
            "target": replay.target,
            "batch": self.number,
            "offsets": self.offsets,
            "records": self.records,
            "records_per_second": round(self.records_per_second, 1),
            "duration_ms": self.duration_ms,
            "left": self.left,
            "eta_seconds": None if self.eta_seconds is None else round(self.eta_seconds, 1),
        }

    def as_text(self) -> str:
        """Return the batch as one line."""
        records = "1 record" if self.records == 1 else f"{self.records:,} records"
        of = f" of {self.offsets:,} offsets" if self.records != self.offsets else ""
        parts = [f"{records}{of} in {self.duration_ms / 1000:.1f} s"]
        if self.records:
            parts.append(f"{self.records_per_second:,.0f} records/s")
        parts.append(f"{self.left:,} offsets left" if self.left else "nothing left")
        if self.left and self.eta_seconds is not None:
            parts.append(f"done in {span(self.eta_seconds)}")
        return f"batch {self.number}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What a run has done when it ends without a failure."""

    batches: int
    records: int
    #: The signal that requested the end, None if everything is replayed.
    stopped_by: Signals | None


@dataclass(frozen=True, slots=True)
class PreparedReplay:
    """A replay with everything that can be known without Spark."""

    replay: Replay
    source: Source
    target: Target
    checkpoint: ReplayCheckpoint
    progress: Progress
    #: Whether it continues an earlier run.
    is_resumed: bool

    def close(self) -> None:
        """Close all connections."""
        self.checkpoint.close()
        self.source.close()


def prepare(replay: Replay, checkpoint: str | None, warn: Callable[[str], None]) -> PreparedReplay:
    """Look everything up, and refuse what cannot be done; without `checkpoint`, the replay gets its own location."""
    with ExitStack() as stack:
        source: Source = (
            ArchiveSource(replay.source)
            if is_archive_uri(replay.source)
            else TopicSource(replay.bootstrap, replay.source, warn)
        )
        stack.callback(source.close)
        target = find_target(replay.bootstrap, replay.target)
        check_target(replay, source, target, ())
        place = _default_checkpoint(replay, source) if checkpoint is None else absolute(checkpoint)
        kept = ReplayCheckpoint(place, replay.identity(source, target))
        stack.callback(kept.close)
        progress = kept.load()
        is_resumed = progress is not None
        if progress is None:
            ranges = ranges_of(source, replay.bounds)
            progress = Progress(ranges, {number: start for number, (start, _) in ranges.items()})
        check_target(replay, source, target, progress.ranges)
        stack.pop_all()
    return PreparedReplay(replay, source, target, kept, progress, is_resumed)


def _default_checkpoint(replay: Replay, source: Source) -> str:
    root = default_root(describe_cluster(replay.bootstrap).cluster_id)
    return location(root, f"replay-{source.topic}-to-{replay.target}")


def run_replay(
    spark: SparkSession,
    prepared: PreparedReplay,
    *,
    report: Callable[[ReplayedBatch], None],
    warn: Callable[[str], None],
    stop: Stop,
) -> ReplayOutcome:
    """Replay what is left until it is done, asked to stop, or fails with an error in users' words."""
    replay, source, progress = prepared.replay, prepared.source, prepared.progress
    tasks = _Tasks(spark, replay, source, stop, warn)
    limit, pace = RateLimit(replay.records_per_second), Pace()
    batches = records = 0
    while progress.left and stop.signal is None:
        began = time.monotonic()
        ahead = _ahead(source.topic, progress, limit.offsets(replay.max_offsets_per_batch))
        spans = source.spans(ranges_between(*ahead, {source.topic: source.lineage}))
        written, oldest_ms = tasks.run(spans)
        if written is None:
            break
        progress = Progress(
            progress.ranges,
            {**progress.next, **{one.range.partition: one.range.end for one in spans}},
            progress.batches + 1,
            progress.records + written,
        )
        prepared.checkpoint.save(progress)
        now = time.monotonic()
        offsets = sum(one.range.size for one in spans)
        eta = pace.eta_seconds(now, progress.left, offsets / max(0.001, now - began))
        report(ReplayedBatch(progress.batches - 1, offsets, written, round((now - began) * 1000), progress.left, eta))
        if not batches and replay.timestamps == "original" and oldest_ms is not None:
            _warn_of_times(prepared.target, oldest_ms, warn)
        batches, records = batches + 1, records + written
        limit.wrote(written, began)
        if progress.left:
            _wait(limit.pause_seconds(time.monotonic()), stop)
    if not progress.left:
        prepared.checkpoint.remove()
        return ReplayOutcome(batches, records, None)
    return ReplayOutcome(batches, records, stop.signal)


def _ahead(topic: str, progress: Progress, offsets: int) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where the next batch begins and ends in each partition."""
    starts = {TopicPartition(topic, number): offset for number, offset in progress.next.items()}
    ends = {TopicPartition(topic, number): end for number, (_, end) in progress.ranges.items()}
    return starts, limit_ends(starts, ends, offsets)


def _warn_of_times(target: Target, oldest_ms: int, warn: Callable[[str], None]) -> None:
    if target.is_log_append_time:
        warn(f"topic '{target.topic}' replaces the times of records by the time of their arrival")
    elif target.retention_ms is not None and oldest_ms < time.time() * 1000 - target.retention_ms:
        warn(
            f"some records are older than the retention of topic '{target.topic}', which will soon delete them: "
            "raise its retention.ms, or replay with --timestamps now"
        )


def _wait(seconds: float, stop: Stop) -> None:
    until = time.monotonic() + seconds
    while stop.signal is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _SLICE))


class _Tasks:
    """Spark's part of a replay: takes spans, returns how many of their records were written."""

    def __init__(
        self, spark: SparkSession, replay: Replay, source: Source, stop: Stop, warn: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._replay = replay
        self._source = source
        self._stop = stop
        self._schema = _schema_of(spark, replay, source, warn)
        self._settings = write_settings({"kafka.bootstrap.servers": replay.bootstrap, "topic": replay.target})

    def run(self, spans: Sequence[Span]) -> tuple[int | None, int | None]:
        """Replay spans; return the number of records, None if interrupted, and the time of the oldest."""
        with in_users_words(self._replay.where):
            frame = self._frame(spans)
            rows = self._collect(frame)
        if rows is None:
            return None, None
        times = [row["oldest_ms"] for row in rows if row["oldest_ms"] is not None]
        return sum(row["records"] for row in rows), min(times, default=None)

    def _frame(self, spans: Sequence[Span]) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType, StructField, StructType

        from tailrace.pipeline.replay.tasks import WRITTEN_COLUMNS, CopyTask, ReadTask, WriteTask

        replay = self._replay
        result = StructType([StructField("records", LongType()), StructField("oldest_ms", LongType())])
        # A number for each task, and a task for each span.
        numbers = self._spark.range(0, len(spans), 1, len(spans))
        read = ReadTask(tuple(spans), self._source.client, replay.skips_corrupt)
        write = WriteTask(replay.target, self._settings, replay.partition_by == "key", replay.timestamps == "original")
        if replay.where is None:
            return numbers.mapInArrow(CopyTask(read, write).__call__, result)
        records = numbers.mapInArrow(read.__call__, spark_schema(COLUMNS))
        if replay.format is None:
            chosen = records.where(replay.where).select(*WRITTEN_COLUMNS)
        else:
            decoded = decode(records, replay.format, self._schema).where(replay.where)
            chosen = decoded.select(*(F.col(f"_{name}").alias(name) for name in WRITTEN_COLUMNS))
        return chosen.mapInArrow(write.__call__, result)

    def _collect(self, frame: DataFrame) -> list[Any] | None:
        """Return the rows of a frame; None if a second signal requested the end at once."""
        is_cancelled = False
        # On another thread: a thread that waits for Spark cannot handle signals.
        with ThreadPoolExecutor(1) as thread:
            collecting = thread.submit(frame.collect)
            while not collecting.done():
                wait([collecting], _SLICE)
                if self._stop.is_at_once and not is_cancelled:
                    is_cancelled = True
                    self._spark.sparkContext.cancelAllJobs()
        if is_cancelled and collecting.exception() is not None:
            return None
        return collecting.result()


def _schema_of(
    spark: SparkSession, replay: Replay, source: Source, warn: Callable[[str], None]
) -> str | StructType | None:
    """Return the schema of values: the given one or, for JSON of a topic, the fields of all its values."""
    if replay.format is None or replay.where is None:
        return None
    if replay.schema is not None:
        kind, content = read_schema(replay.schema)
        if replay.format in ("json", "avro") and kind != replay.format:
            raise ConfigError(f"--format is {replay.format}, but --schema is for {kind}")
        return content
    if replay.format == "avro":
        raise ConfigError("Avro values need --schema with the name of an .avsc file")
    if replay.format != "json":
        return None
    if source.client is None:
        raise ConfigError("JSON values of an archive without its topic need --schema, such as 'id INT, total DOUBLE'")
    from tailrace.pipeline.sql.sampling import infer_all_json, infer_json, take_sample

    fails = str(not replay.skips_corrupt).lower()
    options = {
        "kafka.bootstrap.servers": replay.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": source.topic,
        "failOnCorruptBatch": fails,
    }
    with in_users_words():
        sample = take_sample(options)
        if sample.is_complete:
            fields = infer_json(spark, sample)
        else:
            values = spark.read.format("tailrace").options(**options, columns="value").load()
            fields = infer_all_json(spark, values, source.topic)
    if fields.misfits != 0:
        count = "some" if fields.misfits is None else f"{fields.misfits:,}"
        warn(f"{count} values of topic '{source.topic}' are not JSON objects: --where sees null for their fields")
    return fields.schema
