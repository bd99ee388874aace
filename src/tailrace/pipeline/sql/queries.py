"""Queries over topics: names in a query that Spark does not know become views over topics with these names.

Spark itself reports these names when it does not find a table: it never asks for names of common table expressions,
aliases and tables of the catalogue. The query is first analysed with stand-ins that have the columns of the topics and
no rows; so mistakes show before anything is read, and the needed columns of the topics become known. Guessed columns
are those of all values that the query reads: if a sample does not have all values, every value is read first. It must
not know how results are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from tailrace.errors import ConfigError
from tailrace.pipeline.arrow.formats import CORRUPT, METADATA, Format, decode
from tailrace.pipeline.source.offsets import to_stream_offset
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tailrace.pipeline.spark.errors import PipelineError, in_users_words
from tailrace.pipeline.spark.session import silence_query_logging
from tailrace.pipeline.sql.sampling import Sample, guess_format, infer_all_json, infer_json, is_utf8, take_sample

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

_SOURCE = "tailrace"
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_NO_COLUMN = "UNRESOLVED_COLUMN"
_NAME_PART = re.compile(r"`((?:[^`]|``)*)`")
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?:(?:LOGICAL|FORMATTED|EXTENDED|CODEGEN|COST)\s+)?", re.IGNORECASE)
_STATEMENTS = ("Command", "ParsedStatement")
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_HARMLESS = re.compile(r"Describe|Explain|ShowFunctions|ShowColumns")
#: The columns of topics that queries use.
_RAW_COLUMNS = tuple(column for column in COLUMNS if column in METADATA.values())
#: The number of offsets that is worth a task.
_OFFSETS_PER_TASK = 50_000


@dataclass(frozen=True, slots=True)
class TopicReading:
    """How to read the topics of a query: from where to where, and the format of their values.

    Formats and schemas are by topic; those under None apply to all others.
    """

    bootstrap: str
    start_ms: int | None = None
    end_ms: int | None = None
    formats: Mapping[str | None, Format] = field(default_factory=dict)
    schemas: Mapping[str | None, str] = field(default_factory=dict)
    #: If true, begin where brokers find the start by the headers of batches; see the data source's option `timeIndex`.
    uses_time_index: bool = False
    #: Whether undecodable batches are skipped; otherwise they fail the query.
    skips_corrupt: bool = False

    def values_of(self, topic: str) -> tuple[Format | None, str | None]:
        """Return the given format and schema of a topic; a schema for all topics only applies to its own format."""
        for_all = self.formats.get(None)
        format = self.formats.get(topic, for_all)
        return format, self.schemas.get(topic, self.schemas.get(None) if format == for_all else None)

    def options(self, topic: str) -> dict[str, str]:
        """Return the options for the data source.

        Times are not among them: its options for them mean offsets, as in Spark's Kafka connector, and the records of a
        partition are not ordered by time.
        """
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}
        if self.uses_time_index:
            options["timeIndex"] = "true"
        if self.skips_corrupt:
            options["failOnCorruptBatch"] = "false"
        return options

    @property
    def has_times(self) -> bool:
        return self.start_ms is not None or self.end_ms is not None

    def within_times(self, frame: DataFrame) -> DataFrame:
        """Return the records from the start on and before the end, each by its own time."""
        from pyspark.sql import functions as F

        time = F.col("timestamp")
        if self.start_ms is not None:
            frame = frame.where(time >= F.timestamp_millis(F.lit(self.start_ms)))
        if self.end_ms is not None:
            frame = frame.where(time < F.timestamp_millis(F.lit(self.end_ms)))
        return frame


@dataclass(slots=True)
class _TopicTable:
    """What is known of one topic of the query."""

    number: int
    topic: str
    format: Format
    schema: str | StructType | None
    sample: Sample
    guessed: bool
    #: The number of values unexpectedly without fields; None if there are some but they were not counted.
    misfits: int | None = 0
    #: Whether all values were read, and not only a sample.
    is_known: bool = True


class TopicQuery:
    """One query over the topics of a cluster."""

    def __init__(self, spark: SparkSession, query: str, reading: TopicReading, topics: Sequence[str]) -> None:
        # Unknown names are part of the procedure here, not failures.
        silence_query_logging()
        # A separate session, so that only this query sees its views.
        self._spark = spark.newSession()
        self._query = query
        self._reading = reading
        self._topics = topics
        self._tables: dict[str, _TopicTable] = {}
        #: The final text for Spark: the query, with quotes around dotted names of topics.
        self.text = query
        #: Sentences about what the result does not show by itself.
        self.warnings: list[str] = []

    @property
    def is_explanation(self) -> bool:
        """True if the result is a plan, a text of many lines, and not rows."""
        return _EXPLAIN.match(self._query) is not None

    def frame(self) -> DataFrame:
        """Return the result, not yet computed; `PipelineError` says what is wrong with the query."""
        self._check_statement()
        explain = _EXPLAIN.match(self._query)
        head = explain[0] if explain else ""
        text, stand_in = self._resolve(self._query[len(head) :])
        for name in (*self._reading.formats, *self._reading.schemas):
            if name is not None and name not in self._tables:
                raise ConfigError(f"--format or --schema is given for '{name}', but the query does not read it")
        needed = _needed_columns(stand_in._jdf.queryExecution().optimizedPlan())
        # A query of only offsets or times needs no value, and so no guess either.
        if self._look_through(table for table in self._tables.values() if "value" in needed.get(table.number, ())):
            text, stand_in = self._resolve(text)
            needed = _needed_columns(stand_in._jdf.queryExecution().optimizedPlan())
        for table in self._tables.values():
            wanted = needed.get(table.number, set())
            self._view(table, self._load(table, tuple(name for name in _RAW_COLUMNS if name in wanted)))
            if "value" in wanted and table.misfits != 0:
                self.warnings.append(_misfits_of(table))
        self.text = head + text
        with in_users_words(self.text):
            return self._spark.sql(self.text)

    def _check_statement(self) -> None:
        session: Any = self._spark._jsparkSession
        try:
            with in_users_words(self._query):
                plan = session.sessionState().sqlParser().parsePlan(self._query)
        except PipelineError as error:
            for topic in _unquoted(self._topics, self._query):
                error.add_note(
                    f"put a topic's name with other characters than letters, digits and _ in backquotes: `{topic}`"
                )
            raise
        kind = plan.getClass().getSimpleName()
        if any(_is_a(plan, _LOGICAL + name) for name in _STATEMENTS) and not _HARMLESS.match(kind):
            raise PipelineError(
                "only queries can run here: SELECT, WITH, VALUES, DESCRIBE topic and EXPLAIN; list topics with "
                "`tailrace topic list`, and keep a result with --output"
            )

    def _resolve(self, query: str) -> tuple[str, DataFrame]:
        """Find the topics of a query; return its text with quotes around dotted names of topics."""
        from pyspark.errors import AnalysisException

        text = query
        while True:
            try:
                return text, self._spark.sql(text)
            except AnalysisException as error:
                condition = error.getCondition() or ""
                if condition.startswith(_NOT_FOUND):
                    text = self._add_topic(error, text)
                    continue
                # A field that no sampled value has may be in other values.
                if condition.startswith(_NO_COLUMN) and self._look_through(self._tables.values()):
                    continue
                with in_users_words(text):
                    if condition.startswith(_NO_COLUMN):
                        self._explain_missing_column(error, text)
                    raise

    def _explain_missing_column(self, error: AnalysisException, text: str) -> None:
        """Add a note if columns were guessed from an empty topic."""
        empty = [table.topic for table in self._tables.values() if table.guessed and not table.sample.values]
        if not empty:
            return
        try:
            with in_users_words(text):
                raise error
        except PipelineError as told:
            told.add_note(f"topic '{empty[0]}' has no values to guess columns from; name them with --schema")
            raise

    def _add_topic(self, error: AnalysisException, text: str) -> str:
        """Create a view for the topic that Spark looked for; quote dotted names, as a view's name has one part."""
        parameters = error.getMessageParameters() or {}
        parts = [part.replace("``", "`") for part in _NAME_PART.findall(parameters.get("relationName", ""))]
        topic = ".".join(parts)
        if not parts or topic.lower() in (known.lower() for known in self._tables if known != topic):
            with in_users_words(text):
                raise error
        if topic not in self._topics:
            raise _unknown(topic, self._topics)
        if topic not in self._tables:
            self._tables[topic] = table = self._look_at(topic)
            with in_users_words():
                self._view(table, self._stand_in(table))
            if len(parts) == 1:
                return text
        contexts = error.getQueryContext()
        if len(parts) == 1 or not contexts:
            with in_users_words(text):
                raise error
        start, stop = contexts[0].startIndex(), contexts[0].stopIndex()
        return f"{text[:start]}`{topic}`{text[stop + 1 :]}"

    def _look_at(self, topic: str) -> _TopicTable:
        reading = self._reading
        format, given = reading.values_of(topic)
        schema: str | StructType | None = given
        sample = take_sample(reading.options(topic))
        guessed = format is None or (format == "json" and schema is None)
        if format is None:
            format = guess_format(sample)
        misfits: int | None = 0
        if format == "json" and schema is None:
            with in_users_words():
                fields = infer_json(self._spark, sample)
            schema, misfits = fields.schema, fields.misfits
        elif format == "text" and guessed:
            misfits = sum(1 for value in sample.values if not is_utf8(value))
        if format == "avro" and schema is None:
            raise ConfigError(f"values of topic '{topic}' are Avro and need --schema with the name of an .avsc file")
        is_known = sample.is_complete or not guessed or format == "raw"
        return _TopicTable(len(self._tables), topic, format, schema, sample, guessed, misfits, is_known)

    def _look_through(self, tables: Iterable[_TopicTable]) -> bool:
        """Read every value of topics whose fields were guessed from a sample; return whether there were any."""
        unknown = [table for table in tables if not table.is_known]
        for table in unknown:
            table.is_known = True
            with in_users_words():
                values = self._load(table, ("value",))
                if table.format == "json":
                    fields = infer_all_json(self._spark, values, table.topic)
                    table.schema, table.misfits = fields.schema, fields.misfits
                else:
                    corrupt = decode(values, table.format).where(f"{CORRUPT} IS NOT NULL")
                    table.misfits = 0 if corrupt.isEmpty() else None
                self._view(table, self._stand_in(table))
        return bool(unknown)

    def _stand_in(self, table: _TopicTable) -> DataFrame:
        """Return a frame with the topic's columns and no rows; a number in its names identifies it in a plan."""
        plain = spark_schema(_RAW_COLUMNS)
        numbered = StructType([StructField(f"{table.number}:{one.name}", one.dataType) for one in plain])
        return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), numbered).toDF(*plain.names)

    def _load(self, table: _TopicTable, columns: tuple[str, ...]) -> DataFrame:
        """Return the topic itself, with nulls for columns that are not needed."""
        from pyspark.sql import functions as F

        # A count needs no column, but it needs the records.
        read = columns or ("offset",)
        if self._reading.has_times and "timestamp" not in read:
            read = (*read, "timestamp")
        options = {**self._reading.options(table.topic), "columns": ",".join(read)}
        if table.sample.ends:
            # Read up to the offsets that were sampled, though more records may have arrived since.
            options["endingOffsets"] = json.dumps(to_stream_offset(table.sample.ends))
        tasks = min(table.sample.offsets // _OFFSETS_PER_TASK, self._spark.sparkContext.defaultParallelism)
        if tasks > 1:
            options["minPartitions"] = str(tasks)
        loaded = self._reading.within_times(self._spark.read.format(_SOURCE).options(**options).load())
        return loaded.select(
            *(
                F.col(one.name) if one.name in columns else F.lit(None).cast(one.dataType).alias(one.name)
                for one in spark_schema(_RAW_COLUMNS)
            )
        )

    def _view(self, table: _TopicTable, frame: DataFrame) -> None:
        decode(frame, table.format, table.schema).createOrReplaceTempView(f"`{table.topic}`")


def _misfits_of(table: _TopicTable) -> str:
    count = (
        "some values" if table.misfits is None else ("1 value" if table.misfits == 1 else f"{table.misfits:,} values")
    )
    kind = "JSON objects" if table.format == "json" else "text"
    verb = "is" if table.misfits == 1 else "are"
    return (
        f"{count} of topic '{table.topic}' {verb} not {kind}: their fields are null, and {CORRUPT} holds them; see "
        f"SELECT _partition, _offset, {CORRUPT} FROM `{table.topic}` WHERE {CORRUPT} IS NOT NULL"
    )


def _unquoted(topics: Sequence[str], query: str) -> list[str]:
    """Return topics that a query names without the required quotes."""
    odd = [topic for topic in topics if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", topic)]
    named = [topic for topic in odd if re.search(rf"(?<![\w.`-]){re.escape(topic)}(?![\w.`-])", query)]
    return named[:1]


def _unknown(topic: str, topics: Sequence[str]) -> PipelineError:
    near = get_close_matches(topic, topics, n=3, cutoff=0.6)
    near += [name for name in topics if name.lower() == topic.lower() and name not in near]
    if near:
        hint = "did you mean " + " or ".join(f"`{name}`" for name in near) + "?"
    else:
        hint = "list all topics with: tailrace topic list"
    return PipelineError(f"topic '{topic}' does not exist; {hint}")


# --- Spark's plans, read through the gateway


def _needed_columns(plan: Any) -> dict[int, set[str]]:
    """Return the columns that an optimised plan takes from each topic, by the topic's number."""
    needed: dict[int, set[str]] = {}
    for name in _taken(plan, None):
        number, separator, column = name.partition(":")
        if separator and number.isdigit() and column in _RAW_COLUMNS:
            needed.setdefault(int(number), set()).add(column)
    return needed


def _taken(plan: Any, wanted: list[str] | None) -> Iterator[str]:
    """Yield the columns taken from the leaves; a projection above a leaf says which, otherwise it is all."""
    kind = plan.getClass().getSimpleName()
    for inner in _each(plan.subqueries()):
        yield from _taken(inner, None)
    children = list(_each(plan.children()))
    if not children:
        yield from wanted if wanted is not None else [attribute.name() for attribute in _each(plan.output())]
        return
    if kind in ("Project", "Aggregate"):
        wanted = _references(plan)
    elif kind == "Filter" and wanted is not None:
        wanted = wanted + _references(plan)
    else:
        wanted = None
    for child in children:
        yield from _taken(child, wanted)


def _references(plan: Any) -> list[str]:
    return [attribute.name() for attribute in _each(plan.references().toSeq())]


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _is_a(instance: Any, name: str) -> bool:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    return bool(is_instance_of(SparkContext._gateway, instance, name))
