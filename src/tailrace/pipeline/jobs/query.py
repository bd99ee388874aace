"""The streaming query of a job: decodes its sources, applies its function, writes its sink.

Owns how a job becomes a Spark query, and which rows become records or columns of a table. It must not know how the
query is run.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, TimestampType

from tailrace.errors import ConfigError, TailraceError
from tailrace.pipeline.arrow.formats import CORRUPT, METADATA, decode, read_schema
from tailrace.pipeline.jobs.checkpoints import absolute
from tailrace.pipeline.jobs.dead_letters import counted
from tailrace.pipeline.jobs.declaration import Job, JobError, Table, Topic
from tailrace.pipeline.jobs.table_schema import fitted
from tailrace.pipeline.spark.errors import in_users_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SOURCE = "tailrace"
#: The columns that decoding needs: the others are the same in every row.
_COLUMNS = "key,value,partition,offset,timestamp"
#: Columns that decoding adds beside the fields of a value.
_BESIDE = (*METADATA, CORRUPT)
#: A null column is null in the object too, so that all objects have the same fields.
_JSON_OPTIONS = {"ignoreNullFields": "false", "timeZone": "UTC"}
#: The same as in JSON.
_TIMESTAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Where and how a job runs."""

    bootstrap: str
    #: The directory of this job's checkpoint.
    checkpoint: str
    #: The consumer group that shows the progress.
    group: str
    #: Stop when everything that exists at the start is processed.
    once: bool = False
    #: The time from the start of a batch to the next; None for no pause.
    every_ms: int | None = None
    #: The most offsets of each source in a batch; None for all.
    max_offsets_per_trigger: int | None = None
    #: The job's own options.
    options: Mapping[str, Any] = field(default_factory=dict)


def query_of(session: SparkSession, job: Job[...], settings: RunSettings) -> DataStreamWriter:
    """Return the query of a job, ready to be started; errors are in users' words."""
    result = _result(session, job, settings)
    with in_users_words():
        return _writer(result, job, settings)


def _result(session: SparkSession, job: Job[...], settings: RunSettings) -> DataFrame:
    """Apply the job's function to its sources."""
    with in_users_words():
        frames = [_read(session, job, number, settings) for number in range(len(job.sources))]
    function: Callable[..., Any] = job.function
    try:
        with in_users_words():
            result = function(*frames, **settings.options)
    except TailraceError as error:
        # Its cause is Spark's exception, which knows where it was raised.
        error.add_note(place_in_job(error.__cause__ or error, job))
        raise
    except Exception as error:
        failure = JobError(f"job '{job.name}' failed: {type(error).__name__}: {error}")
        failure.add_note(place_in_job(error, job))
        raise failure from error
    if not isinstance(result, DataFrame):
        hint = "; is a return missing?" if result is None else ""
        raise JobError(f"job '{job.name}' returns {type(result).__name__}, but a DataFrame is required{hint}")
    if not result.isStreaming:
        raise JobError(f"job '{job.name}' returns rows that do not come from its sources; start with its parameters")
    return result


def place_in_job(error: BaseException, job: Job[...]) -> str:
    """Return `  my_job.py, line 7, in totals: return orders.agg(...)`: the last line that ran in the job's file."""
    function: Any = inspect.unwrap(job.function)
    file = function.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not frames:
        return f"  {file}, in {function.__name__}"
    return f"  {file}, line {frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line}"


def _read(session: SparkSession, job: Job[...], number: int, settings: RunSettings) -> DataFrame:
    source = job.sources[number]
    options = {
        "kafka.bootstrap.servers": settings.bootstrap,
        "subscribe": source.name,
        "startingOffsets": source.starting_offsets,
        "columns": _COLUMNS,
    }
    if settings.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(settings.max_offsets_per_trigger)
    records = session.readStream.format(_SOURCE).options(**{**options, **source.options}).load()
    try:
        decoded = decode(records, source.format, source_schema(source))
    except ConfigError as error:
        raise error if isinstance(error, JobError) else JobError(f"topic '{source.name}': {error}") from error
    return counted(decoded, number) if number in sources_with_letters(job) else decoded


def source_schema(source: Topic) -> str | StructType | None:
    """Return the schema of a source: DDL, a StructType or an Avro schema, never the name of a file."""
    if not isinstance(source.schema, str):
        return source.schema
    kind, schema = read_schema(source.schema)
    if source.format in ("json", "avro") and kind != source.format:
        raise JobError(f"topic '{source.name}' is {source.format}, but its schema is for {kind}")
    return schema


def sources_with_letters(job: Job[...]) -> dict[int, Topic]:
    """Return the sources of a job, by number, that can have dead letters; raw bytes never fail to decode."""
    if job.dead_letters is None:
        return {}
    return {number: source for number, source in enumerate(job.sources) if source.format != "raw"}


def _writer(result: DataFrame, job: Job[...], settings: RunSettings) -> DataStreamWriter:
    if isinstance(job.sink, Table):
        writer = _table_writer(result, job.name, job.sink)
    else:
        records = records_of(result, job.name, job.sink)
        options = {"kafka.bootstrap.servers": settings.bootstrap, "topic": job.sink.name, **job.sink.options}
        writer = records.writeStream.format(_SOURCE).options(**options)
    writer = writer.queryName(job.name).outputMode(job.output_mode).option("checkpointLocation", settings.checkpoint)
    if settings.once:
        return writer.trigger(availableNow=True)
    if settings.every_ms is not None:
        return writer.trigger(processingTime=f"{settings.every_ms} milliseconds")
    return writer


def _table_writer(result: DataFrame, job: str, table: Table) -> DataStreamWriter:
    missing = [name for name in table.partition_by if name not in result.columns]
    if missing:
        raise JobError(_no_column(job, f"table '{table.path}' is partitioned by '{missing[0]}'", result))
    rows = fitted(result.sparkSession, result.drop(*_BESIDE), table.path, table.partition_by, job)
    writer = rows.writeStream.format("parquet").options(**table.options).option("path", absolute(table.path))
    return writer.partitionBy(*table.partition_by) if table.partition_by else writer


def records_of(result: DataFrame, job: str, topic: Topic) -> DataFrame:
    """Convert rows to records: all columns as JSON, or an unchanged column `value`, and a column as the key."""
    columns = [name for name in result.columns if name not in _BESIDE]
    if topic.key is not None and topic.key not in result.columns:
        raise JobError(_no_column(job, f"topic '{topic.name}' has the key '{topic.key}'", result))
    if topic.format == "json":
        rows = F.struct(*(result[f"`{name}`"] for name in columns))
        value = F.to_json(rows, _JSON_OPTIONS).alias("value")
    elif "value" not in columns:
        raise JobError(_no_column(job, f"topic '{topic.name}' is {topic.format}, made of a column 'value'", result))
    else:
        value = F.col("value").cast(StringType()) if topic.format == "text" else F.col("value")
        value = value.alias("value")
    if topic.key is not None:
        return result.select(_key(result, topic.key), value)
    if topic.format == "raw":
        return result
    return result.select(value)


def _key(result: DataFrame, name: str) -> Any:
    column = result[f"`{name}`"]
    kind = result.schema[name].dataType
    if isinstance(kind, BinaryType):
        return column.alias("key")
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(column, _JSON_OPTIONS).alias("key")
    if isinstance(kind, TimestampType):
        return F.date_format(column, _TIMESTAMP).alias("key")
    return column.cast(StringType()).alias("key")


def _no_column(job: str, what: str, result: DataFrame) -> str:
    return f"job '{job}': {what}, but there is no such column; the columns are {', '.join(result.columns)}"
