"""`tailrace produce`: send lines, JSON objects or one value to a topic, and print how many were acknowledged."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from tailrace.cli.options import MAX_INT32, MomentType, PairType, WholeNumber, client_options, require_utf8
from tailrace.cli.output import count_of, print_json, warn
from tailrace.cli.record_input import InputRecord, LineFormat, parse_json, read_records, with_defaults

if TYPE_CHECKING:
    from tailrace.client import Producer

#: How long to wait for a topic that the broker does not know: it may be creating it just now.
_UNKNOWN_TOPIC_PATIENCE_MS = 5_000


@click.command()
@click.argument("topic")
@click.option("--value", help="Send this one value instead of reading input.")
@click.option(
    "--file", "source", type=click.File("rb"), metavar="FILE", help="Read from a file instead of standard input."
)
@click.option(
    "--input",
    "input_format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="Read each line as a value or as a JSON object (see above).",
)
@click.option("--key", help="Key for every record that has none of its own.")
@click.option("--key-separator", metavar="SEP", help="Split each line at the first SEP into key and value.")
@click.option("--null-marker", metavar="TEXT", help="Send a value (or key before SEP) that is exactly TEXT as null.")
@click.option(
    "--header", "headers", type=PairType(), multiple=True, help="Add this header to every record. May be repeated."
)
@click.option("--partition", type=WholeNumber(0, MAX_INT32), help="Send to this partition.  [default: by the key]")
@click.option(
    "--timestamp",
    type=MomentType(earliest_ms=1),
    help="Timestamp of the records: milliseconds, or 2026-01-31T12:00:00 (UTC by default).  [default: now]",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches with this codec.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Wait for nobody (0), the leader (1) or all in-sync replicas (all) to store a record.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up on a record that is not acknowledged within this time.",
)
@client_options
def command(
    topic: str,
    value: str | None,
    source: IO[bytes] | None,
    input_format: str,
    key: str | None,
    key_separator: str | None,
    null_marker: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    timestamp: int | None,
    compression: str,
    acks: str,
    timeout: float,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Send each line of standard input to TOPIC as a record.

    With --input json, each line is an object with "value" and optionally "key", "headers" (an object),
    "partition" and "timestamp". Use "value_base64" and "key_base64" for bytes. You can pipe in the output of
    `tailrace consume --json`.

    \b
    Examples:
      echo hello | tailrace produce greetings
      tailrace produce orders --key-separator : --file orders.txt
      tailrace produce orders --key 17 --value paid --header source=shop
      echo '{"key": "17", "value": "paid"}' | tailrace produce orders --input json
    """
    _check_options(value, source, input_format, key, key_separator, null_marker)
    for name in (topic, *(name for name, _ in headers)):
        require_utf8(name)
    if value is not None:
        lines: Iterable[bytes] = [value.encode(errors="surrogateescape")]
    else:
        lines = source or sys.stdin.buffer
        if source is None and sys.stdin.isatty():
            click.echo("type records, one per line; end with Ctrl-D", err=True)
    line_format = LineFormat(_encoded(key_separator), _encoded(null_marker))
    records = read_records(lines, parse_json if input_format == "json" else line_format.parse)
    defaults = InputRecord(
        value=None,
        key=_encoded(key),
        headers=tuple((name, _encoded(content)) for name, content in headers),
        partition=partition,
        timestamp_ms=timestamp,
    )
    settings = {
        "acks": acks,
        "compression.type": compression,
        "message.timeout.ms": round(timeout * 1000),
        "topic.metadata.propagation.max.ms": min(_UNKNOWN_TOPIC_PATIENCE_MS, round(timeout * 1000)),
    }
    with _counted(topic, bootstrap, settings, acks, as_json) as producer:
        for record in records:
            _send(producer, topic, with_defaults(record, defaults))


def _check_options(
    value: str | None,
    source: IO[bytes] | None,
    input_format: str,
    key: str | None,
    key_separator: str | None,
    null_marker: str | None,
) -> None:
    if value is not None and source is not None:
        raise click.UsageError("Give only one of --value and --file.")
    if key is not None and key_separator is not None:
        raise click.UsageError("Give only one of --key and --key-separator.")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty.")
    if input_format == "json" and (key_separator is not None or null_marker is not None):
        raise click.UsageError("--key-separator and --null-marker need --input lines: JSON has its own keys and null.")


def _encoded(text: str | None) -> bytes | None:
    # Python has replaced bytes that are not UTF-8 with surrogates; this restores them.
    return None if text is None else text.encode(errors="surrogateescape")


@contextmanager
def _counted(topic: str, bootstrap: str, settings: dict[str, Any], acks: str, as_json: bool) -> Iterator[Producer]:
    """Yield a producer; at the end, even after an error, print how many records were acknowledged."""
    from tailrace.client import Producer

    producer = Producer(bootstrap, connect_timeout=None, warn=warn, **settings)
    producer.check_connection()
    try:
        with producer:
            yield producer
    finally:
        if as_json:
            print_json({"topic": topic, "acknowledged": producer.acknowledged})
        else:
            done = "sent, none acknowledged (--acks 0)" if acks == "0" else "acknowledged"
            click.echo(f"{count_of(producer.acknowledged, 'record')} {done}", err=True)


def _send(producer: Producer, topic: str, record: InputRecord) -> None:
    producer.send(
        topic,
        record.value,
        key=record.key,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        partition=record.partition,
    )
