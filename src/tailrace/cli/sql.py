"""`tailrace sql`: run a Spark SQL query over topics, and print or write the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from tailrace.cli.durations import parse_duration
from tailrace.cli.options import (
    MAX_INT64,
    PairType,
    ParamType,
    WholeNumber,
    client_options,
    pairs_without_repeats,
    parse_moment,
)
from tailrace.cli.output import count_of, json_line, warn
from tailrace.cli.query_output import distinct, json_object, table_lines
from tailrace.cli.spark_progress import ProgressLine, progress
from tailrace.model import topic_name_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tailrace.pipeline.arrow.formats import Format
    from tailrace.pipeline.sql.queries import TopicReading
    from tailrace.pipeline.sql.results import OutputFormat

_FORMATS = ("json", "avro", "text", "raw")
_OUTPUT_FORMATS = ("parquet", "csv")
#: The years 1 to 9999, which both Spark and Python support.
EARLIEST_MS = -62_135_596_800_000
LATEST_MS = 253_402_300_799_999


class WhenType(ParamType):
    """`earliest` or `latest`, a time, or a duration before now; the value is milliseconds, or the name of the end."""

    name = "WHEN"

    def __init__(self, end: str) -> None:
        self._end = end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text.lower() == self._end:
            return self._end
        try:
            return max(0, int(time.time() * 1000) - parse_duration(text))
        except ValueError:
            pass
        try:
            moment = parse_moment(text, EARLIEST_MS)
        except ValueError:
            self.fail(
                f"'{text}' is neither {self._end}, a time such as 2026-01-31T12:00:00Z, nor a duration such as 2h.",
                param,
                ctx,
            )
        if moment > LATEST_MS:
            self.fail(f"'{text}' is later than the year 9999.", param, ctx)
        return moment


class OfTopicType(ParamType):
    """`TOPIC=VALUE` for one topic, or `VALUE` for all others."""

    def __init__(self, name: str, choices: tuple[str, ...] = ()) -> None:
        self.name = f"[TOPIC=]{name}"
        self._choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | None, str]:
        if isinstance(value, tuple):
            return cast("tuple[str | None, str]", value)
        text = str(value)
        head, separator, rest = text.partition("=")
        topic, content = (head, rest) if separator and topic_name_problem(head) is None else (None, text)
        if self._choices and content not in self._choices:
            self.fail(f"'{content}' is not one of {', '.join(self._choices)}.", param, ctx)
        if not content.strip():
            self.fail("it must not be empty.", param, ctx)
        return topic, content


@click.command("sql")
@click.argument("query")
@click.option(
    "--format",
    "formats",
    type=OfTopicType("FORMAT", _FORMATS),
    multiple=True,
    help="Decode values as json, avro, text or raw, in one topic or in all. "
    "[default: json if a sample is JSON, else text]",
)
@click.option(
    "--schema",
    "schemas",
    type=OfTopicType("SCHEMA"),
    multiple=True,
    help="Fields of the values: 'id INT, total DOUBLE', or a file with such a list or an Avro schema. "
    "[default: for JSON, the fields of all values]",
)
@click.option(
    "--from",
    "start",
    type=WhenType("earliest"),
    default="earliest",
    help="Read only records from this time on: a time, or a duration before now such as 2h. [default: earliest]",
)
@click.option(
    "--to",
    "end",
    type=WhenType("latest"),
    default="latest",
    help="Read only records before this time. [default: latest, the current end]",
)
@click.option(
    "--time-index",
    is_flag=True,
    help="With --from: let brokers skip older batches by their headers. Faster on long topics, but misses records if "
    "a producer wrote too early a timestamp into the header.",
)
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Skip batches that cannot be decoded, and count them; by default they are errors.",
)
@click.option("--limit", type=WholeNumber(0, MAX_INT64), help="Return at most this many rows.")
@click.option(
    "--output", metavar="PATH", help="Write the result to PATH: one file if it is *.parquet or *.csv, else a directory."
)
@click.option(
    "--output-format",
    type=click.Choice(_OUTPUT_FORMATS),
    help="Write this format. [default: by the suffix of PATH, else parquet]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing result at PATH.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master to run on.")
@click.option("--conf", type=PairType(), multiple=True, help="Set a Spark property. May be repeated.")
@click.option("--quiet", "-q", is_flag=True, help="Print neither progress nor the row count.")
@click.option("--verbose", "-v", is_flag=True, help="Show the log of Spark.")
@client_options
def command(
    query: str,
    formats: tuple[tuple[str | None, str], ...],
    schemas: tuple[tuple[str | None, str], ...],
    start: int | str,
    end: int | str,
    time_index: bool,
    skip_corrupt: bool,
    limit: int | None,
    output: str | None,
    output_format: str | None,
    overwrite: bool,
    master: str,
    conf: tuple[tuple[str, str], ...],
    quiet: bool,
    verbose: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Run a Spark SQL query in which topics are tables.

    If QUERY is -, the query is read from standard input.

    Put names with dots or dashes in backquotes: `web-clicks`. The columns of a topic are the fields of its values
    (text and raw values have one, `value`), and for each record:

    \b
      _key, _value      its bytes
      _partition, _offset, _timestamp, _headers
      _corrupt          the value if it could not be decoded, else null

    If a field has one of these names, it gets one more underscore. Without --schema, the fields and types of JSON are
    inferred from all values, which costs an additional pass over the topic. Avro values may be bare or in Confluent's
    wire format, and must match the given schema.

    \b
    Examples:
      tailrace sql "SELECT * FROM orders LIMIT 10"
      tailrace sql "SELECT customer, count(*), sum(amount) FROM orders GROUP BY customer" --from 1d
      tailrace sql "SELECT o.id, p.amount FROM orders o JOIN payments p ON o.id = p.order" --format payments=avro \\
        --schema payments=payment.avsc
      tailrace sql "SELECT _offset, _corrupt FROM orders WHERE _corrupt IS NOT NULL" --json
      tailrace sql "SELECT * FROM orders" --output orders.parquet
      tailrace sql "DESCRIBE orders"
    """
    if as_json and output is not None:
        raise click.UsageError("--json prints the result: leave out --output.")
    if output is None and (output_format is not None or overwrite):
        raise click.UsageError("--output-format and --overwrite need --output.")
    if start != "earliest" and end != "latest" and int(start) > int(end):
        raise click.UsageError("--from must not be after --to.")
    text = sys.stdin.read() if query == "-" else query
    if not text.strip():
        raise click.UsageError("The query must not be empty.")
    _check_spark()
    from tailrace.client import Topics
    from tailrace.pipeline.spark.session import spark_session, stopping
    from tailrace.pipeline.sql.results import check_output

    if output is not None:
        check_output(output, overwrite=overwrite)
    if time_index and start == "earliest":
        raise click.UsageError("--time-index needs --from.")
    reading = reading_of(bootstrap, formats, schemas, start, end, time_index=time_index, skips_corrupt=skip_corrupt)
    settings = pairs_without_repeats(conf, "--conf")
    topics = [topic.name for topic in Topics(bootstrap).list()]
    with progress("starting Spark", shown=not quiet and not verbose) as line:
        spark = spark_session("tailrace sql", master=master, conf=settings, log="info" if verbose else None)
        with stopping(spark):
            run(
                spark, text, reading, topics, line,
                limit=limit, as_json=as_json, output=output, output_format=cast("OutputFormat | None", output_format),
                overwrite=overwrite, quiet=quiet,
            )  # fmt: skip


def reading_of(
    bootstrap: str,
    formats: tuple[tuple[str | None, str], ...],
    schemas: tuple[tuple[str | None, str], ...],
    start: int | str,
    end: int | str,
    *,
    time_index: bool = False,
    skips_corrupt: bool = False,
) -> TopicReading:
    """Turn the options into how topics are read; a schema implies the format if --format is not given."""
    from tailrace.pipeline.arrow.formats import read_schema
    from tailrace.pipeline.sql.queries import TopicReading

    given_formats = cast("dict[str | None, Format]", _by_topic(formats, "--format"))
    chosen = dict(given_formats)
    contents: dict[str | None, str] = {}
    for topic, given in _by_topic(schemas, "--schema").items():
        fits, contents[topic] = read_schema(given)
        said = given_formats.get(topic, given_formats.get(None))
        if said is None:
            chosen[topic] = fits
        elif said != fits:
            what = "an Avro schema" if fits == "avro" else "names and types of fields"
            raise click.UsageError(f"--schema has {what}, but --format is {said}.")
    return TopicReading(
        bootstrap,
        None if start == "earliest" else int(start),
        None if end == "latest" else int(end),
        chosen,
        contents,
        time_index,
        skips_corrupt,
    )


def _by_topic(pairs: tuple[tuple[str | None, str], ...], option: str) -> dict[str | None, str]:
    result: dict[str | None, str] = {}
    for topic, value in pairs:
        if topic in result:
            raise click.UsageError(f"{option} is given twice for {'all topics' if topic is None else repr(topic)}.")
        result[topic] = value
    return result


def _check_spark() -> None:
    """Fail at once if something is missing, before any request to the broker."""
    from tailrace.pipeline.spark.session import check_installation, log_level

    log_level()
    check_installation()


def run(
    spark: Any,
    query: str,
    reading: TopicReading,
    topics: list[str],
    line: ProgressLine,
    *,
    limit: int | None = None,
    as_json: bool = False,
    output: str | None = None,
    output_format: OutputFormat | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Run a query on a running Spark, print or write its result, and print the row count."""
    from tailrace.pipeline.spark.errors import in_users_words
    from tailrace.pipeline.sql.queries import TopicQuery
    from tailrace.pipeline.sql.results import output_format_of, write_output

    began = time.monotonic()
    line.label = "reading topics"
    over_topics = TopicQuery(spark, query, reading, topics)
    frame = over_topics.frame()
    if limit is not None:
        frame = frame.limit(limit)
    line.label, line.spark = "running", spark
    ending = ""
    with in_users_words(over_topics.text):
        if output is None:
            rows = _print(frame, line, as_json=as_json, as_text=over_topics.is_explanation)
        else:
            line.label = f"writing {output}"
            format = output_format_of(output, output_format)
            rows = write_output(frame, output, format, overwrite=overwrite, seen=line.count)
            ending = f" to {output}"
    line.stop()
    for warning in over_topics.warnings:
        warn(warning)
    if not quiet:
        click.echo(f"{count_of(rows, 'row')}{ending}, {time.monotonic() - began:.1f} s", err=True)


def _print(frame: DataFrame, line: ProgressLine, *, as_json: bool, as_text: bool) -> int:
    from tailrace.pipeline.sql.results import python_values, row_batches

    count = 0

    def rows() -> Iterator[list[Any]]:
        nonlocal count
        for batch in row_batches(frame):
            for row in zip(*(python_values(column) for column in batch.columns), strict=True):
                count += 1
                yield list(row)

    names = frame.columns
    if as_json:
        members = distinct(names)
        lines: Iterator[str] = (json_line(json_object(members, row)) for row in rows())
    elif as_text:
        lines = (str(text).rstrip("\n") for row in rows() for text in row)
    else:
        lines = table_lines(names, rows())
    out = sys.stdout
    for text in lines:
        line.stop()
        out.write(text + "\n")
    out.flush()
    return count
