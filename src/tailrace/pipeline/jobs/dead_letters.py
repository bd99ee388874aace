"""Dead letters of a job: records with undecodable values, in a separate topic or table, with the reason.

Spark counts such records while the job's query runs, at almost no cost. A batch that had some is read again, and they
are written; a batch that had none is only noted. The job's checkpoint holds the progress. So each such record is
written at least once to a topic, and exactly once to a table, even after crashes. This module must not know how a job
is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tailrace.client import TopicExistsError, Topics
from tailrace.errors import TailraceError
from tailrace.pipeline.arrow.formats import CORRUPT, undecodable
from tailrace.pipeline.jobs.checkpoints import CheckpointError, absolute, has_begun, read_text, write_text
from tailrace.pipeline.jobs.declaration import Job, JobError, Table, Topic
from tailrace.pipeline.source.offsets import EARLIEST
from tailrace.pipeline.source.progress import offsets_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The prefix of Spark's counters in a query's progress.
_COUNTER = "tailrace_undecodable_"
_STATE = "dead-letters.json"
_SOURCE = "tailrace"
#: Headers of a dead letter, named as Kafka names those of share groups (KIP-1191).
HEADER_PREFIX = "__dlq.errors."


def counted(frame: DataFrame, number: int) -> DataFrame:
    """Return the decodable rows of the job's source with this number; count the others and drop them."""
    from pyspark.sql import functions as F

    seen = frame.observe(f"{_COUNTER}{number}", F.count(CORRUPT).alias("count"))
    return seen.where(F.col(CORRUPT).isNull())


class DeadLetters:
    """Writes the dead letters of one job's batches, and keeps its progress."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job[...],
        schemas: Mapping[int, str | StructType | None],
        *,
        bootstrap: str,
        group: str,
        checkpoint: str,
        warn: Callable[[str], None],
    ) -> None:
        """Take the schemas of the sources with dead letters, by their numbers."""
        assert job.dead_letters is not None
        self._spark = spark
        self._job = job
        self._schemas = schemas
        self._target = job.dead_letters
        self._bootstrap = bootstrap
        self._group = group
        self._path = f"{checkpoint}/{_STATE}"
        self._warn = warn
        #: The offsets of each source up to which all dead letters are written.
        self._done: dict[int, dict[tuple[str, int], int]] = {}
        self._writes = 0
        self._load(checkpoint)

    def batch_done(self, progress: Mapping[str, Any]) -> None:
        """Write the dead letters of the batch that a query's progress, as Spark's JSON, describes."""
        counts = progress.get("observedMetrics", {})
        changed = False
        for number in self._schemas:
            source = self._job.sources[number]
            for each in progress.get("sources", ()):
                start, end = offsets_of(each.get("startOffset")), offsets_of(each.get("endOffset"))
                if {topic for topic, _ in end} != {source.name}:
                    continue
                count = counts.get(f"{_COUNTER}{number}", {}).get("count")
                changed |= self._source_done(number, start, end, count)
                break
        if changed:
            self._save()

    def _source_done(
        self, number: int, start: dict[tuple[str, int], int], end: dict[tuple[str, int], int], count: int | None
    ) -> bool:
        done = self._done.get(number, start)
        # A run that was killed after its last batch left a gap.
        is_behind = any(done.get(place, EARLIEST) != start.get(place, EARLIEST) for place in end)
        if count or count is None or is_behind:
            self._write(number, done, end, None if is_behind else count)
        if self._done.get(number) == end:
            return False
        self._done[number] = end
        return True

    def _write(
        self, number: int, start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int], count: int | None
    ) -> None:
        source = self._job.sources[number]
        # A new partition begins at its start; if its topic was created again, it is shorter than before.
        begins = {place: start.get(place, EARLIEST) for place in end}
        begins = {place: EARLIEST if offset > end[place] else offset for place, offset in begins.items()}
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            **{name: value for name, value in source.options.items() if name.lower() not in _FOR_STREAMS},
            # Partitions may have been added since.
            "assign": json.dumps({source.name: [partition for _, partition in sorted(end)]}),
            "startingOffsets": _as_json(begins),
            "endingOffsets": _as_json(end),
            "includeHeaders": "true",
        }
        records = self._spark.read.format(_SOURCE).options(**options).load()
        letters = undecodable(records, source.format, self._schemas[number])
        if count is None and letters.isEmpty():
            return
        if isinstance(self._target, Table):
            self._to_table(letters, self._target)
            where = f"table '{self._target.path}'"
        else:
            self._to_topic(letters, self._target)
            where = f"topic '{self._target.name}'"
        values = "some values" if count is None else "1 value" if count == 1 else f"{count:,} values"
        self._warn(f"{values} of topic '{source.name}' cannot be decoded; see {where}")

    def _to_topic(self, letters: DataFrame, target: Topic) -> None:
        from pyspark.sql import functions as F

        try:
            Topics(self._bootstrap).create(target.name)
        except TopicExistsError:
            pass
        except TailraceError as error:
            raise JobError(f"cannot create topic '{target.name}' for dead letters: {error}") from error
        told = {
            "topic": F.col("topic"),
            "partition": F.col("partition").cast("string"),
            "offset": F.col("offset").cast("string"),
            "group": F.lit(self._group),
            "message": F.col("reason"),
        }
        added = F.array(
            *(
                F.struct(F.lit(HEADER_PREFIX + name).alias("key"), F.encode(text, "UTF-8").alias("value"))
                for name, text in told.items()
            )
        )
        headers = F.when(F.col("headers").isNull(), added).otherwise(F.concat(F.col("headers"), added))
        rows = letters.select("key", "value", headers.alias("headers"))
        options = {"kafka.bootstrap.servers": self._bootstrap, **target.options, "topic": target.name}
        rows.write.format(_SOURCE).mode("append").options(**options).save()

    def _to_table(self, letters: DataFrame, table: Table) -> None:
        from pyspark.sql import functions as F

        columns = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "reason")
        rows = letters.select(*columns, F.lit(self._job.name).alias("job"))
        # A batch that is written again after a crash replaces the earlier one.
        path = f"{absolute(table.path)}/batch={self._writes}"
        rows.write.mode("overwrite").options(**table.options).parquet(path)
        self._writes += 1

    # --- progress

    def _load(self, checkpoint: str) -> None:
        text = read_text(self._spark, self._path)
        if text is None:
            if not has_begun(self._spark, checkpoint):
                self._save()  # so that a restart recognizes a first batch whose letters are not written
            return
        try:
            kept = json.loads(text)
            self._writes = kept["writes"]
            self._done = {int(number): offsets_of(offsets) for number, offsets in kept["done"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{self._path} was not written by this job: {error}") from None
        for number in self._schemas:
            source = self._job.sources[number]
            if number not in self._done and has_begun(self._spark, checkpoint):
                # Killed in its first batch, or right after it.
                if source.starting_offsets == "earliest":
                    self._done[number] = {}
                elif source.starting_offsets.startswith("{"):
                    self._done[number] = offsets_of(json.loads(source.starting_offsets))

    def _save(self) -> None:
        done = {str(number): _nested(offsets) for number, offsets in self._done.items()}
        write_text(self._spark, self._path, json.dumps({"writes": self._writes, "done": done}))


#: Options of a source that limit a stream, which a known range does not need.
_FOR_STREAMS = frozenset(
    ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy",
     "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "columns", "subscribe", "kafka.group.id")
)  # fmt: skip


def _nested(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _as_json(offsets: Mapping[tuple[str, int], int]) -> str:
    return json.dumps(_nested(offsets))
