"""`tailrace consume`: print the records of a topic as raw bytes or as JSON lines."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.options import MAX_INT32, MAX_INT64, MomentType, WholeNumber, client_options
from tailrace.cli.output import headers_to_json, iso, json_line, put_bytes, warn

if TYPE_CHECKING:
    from tailrace.client import Message
    from tailrace.client.consumer import Start


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start at the first record (the default).")
@click.option("--from-end", is_flag=True, help="Start after the last record; useful with --follow.")
@click.option("--offset", type=WholeNumber(0, MAX_INT64), help="Start at this offset of each partition.")
@click.option(
    "--from-timestamp",
    type=MomentType(),
    help="Start at the first record at or after this time: milliseconds, or 2026-01-31T12:00:00 (UTC by default).",
)
@click.option(
    "--partition",
    "partitions",
    type=WholeNumber(0, MAX_INT32),
    multiple=True,
    help="Read only this partition. May be repeated.",
)
@click.option("--count", type=WholeNumber(0, MAX_INT64), help="Stop after this many records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records instead of stopping at the end.")
@click.option("--timestamps", is_flag=True, help="Print each record's timestamp before it.")
@click.option("--offsets", is_flag=True, help="Print each record's partition and offset before it.")
@click.option("--keys", is_flag=True, help="Print each record's key before it.")
@click.option("--headers", is_flag=True, help="Print each record's headers before it.")
@client_options
def command(
    topic: str,
    from_beginning: bool,
    from_end: bool,
    offset: int | None,
    from_timestamp: int | None,
    partitions: tuple[int, ...],
    count: int | None,
    follow: bool,
    timestamps: bool,
    offsets: bool,
    keys: bool,
    headers: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Print the records of TOPIC up to the current end.

    Prints one record per line.

    --timestamps, --offsets, --keys and --headers print columns before the value, in that order, separated by tabs. A
    null key or value is printed as null. Records of different partitions come in no particular order.

    \b
    Examples:
      tailrace consume orders
      tailrace consume orders --keys --offsets --count 10
      tailrace consume orders --follow --from-end
      tailrace consume orders --from-timestamp 2026-01-31T12:00:00Z --json
    """
    given = [from_beginning, from_end, offset is not None, from_timestamp is not None]
    if sum(given) > 1:
        raise click.UsageError("Give only one of --from-beginning, --from-end, --offset and --from-timestamp.")
    from tailrace.client import Timestamp, read

    start: Start = "latest" if from_end else "earliest"
    if offset is not None:
        start = offset
    elif from_timestamp is not None:
        start = Timestamp(from_timestamp)

    out = sys.stdout.buffer
    with read(
        topic, bootstrap=bootstrap, start=start, partitions=partitions or None, follow=follow, warn=warn
    ) as messages:
        for message in itertools.islice(messages, count):
            if as_json:
                line = json_line(message_to_json(message)).encode()
            else:
                line = text_line(message, timestamps=timestamps, offsets=offsets, keys=keys, headers=headers)
            out.write(line + b"\n")
            if follow:
                out.flush()
        out.flush()


def message_to_json(message: Message) -> dict[str, Any]:
    """Convert a message to the JSON that `produce --input json` reads."""
    result: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms if message.timestamp_ms >= 0 else None,
    }
    put_bytes(result, "key", message.key)
    put_bytes(result, "value", message.value)
    result["headers"] = headers_to_json(message.headers)
    return result


def text_line(message: Message, *, timestamps: bool, offsets: bool, keys: bool, headers: bool) -> bytes:
    """Format a message as a line without changing its bytes."""
    columns: list[bytes] = []
    if timestamps:
        columns.append(iso(message.timestamp_ms).encode())
    if offsets:
        columns.append(f"{message.partition}:{message.offset}".encode())
    if keys:
        columns.append(_or_null(message.key))
    if headers:
        columns.append(b",".join(name.encode() + b"=" + _or_null(content) for name, content in message.headers))
    columns.append(_or_null(message.value))
    return b"\t".join(columns)


def _or_null(content: bytes | None) -> bytes:
    return b"null" if content is None else content
