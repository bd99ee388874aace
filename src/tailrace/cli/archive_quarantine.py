"""`tailrace archive quarantine`: list, show and retry archived batches that cannot be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.options import MAX_INT32, MAX_INT64, WholeNumber, client_options
from tailrace.cli.output import count_of, print_json, print_table

if TYPE_CHECKING:
    from tailrace.archive.location import Location
    from tailrace.archive.manifest import Snapshot
    from tailrace.archive.quarantine import SideFile
    from tailrace.records.batch import BatchHeader

_LEFT = 1
_SHOWN_BYTES = 256
_LINE_BYTES = 16

_uri = click.option("--uri", help="URI of the archive, if this machine needs a different one than the brokers.")
_partition = click.option("--partition", type=WholeNumber(0, MAX_INT32), help="Only batches of this partition.")


@click.group("quarantine")
def command() -> None:
    """List, show and retry archived batches that cannot be decoded.

    A broken client can produce a batch with a valid CRC but invalid records. The archiver quarantines it: it keeps
    the batch as produced and continues. Kafka clients get the batch as they would from the log; queries fail or skip
    it. To make brokers refuse such batches: tailrace config set topic TOPIC tailrace.records.validate=true

    \b
    Example:
      tailrace archive quarantine list orders
    """


@contextmanager
def _opened(bootstrap: str, topic: str, uri: str | None) -> Iterator[tuple[Location, Snapshot]]:
    from tailrace.archive.installation import require_packages
    from tailrace.archive.location import open_location

    require_packages()
    from tailrace.archive.manifest import load_snapshot
    from tailrace.client.archive import describe_archived

    found = describe_archived(bootstrap, topic)
    archive = found.archive if uri is None else replace(found.archive, uri=uri)
    location = open_location(archive.uri)
    try:
        yield location, load_snapshot(location, archive)
    finally:
        location.close()


def _batches(
    location: Location, snapshot: Snapshot, partition: int | None
) -> Iterator[tuple[SideFile, BatchHeader, bytes]]:
    """Yield each quarantined batch once, in order."""
    from tailrace.archive.quarantine import read_side_file

    before = None
    for file in snapshot.side_files:
        if partition is not None and file.partition != partition:
            continue
        for header, data in read_side_file(location, snapshot.directory, file):
            # A batch that crosses the end of a file is in the side files of both.
            if (file.partition, header.base_offset) != before:
                yield file, header, data
            before = file.partition, header.base_offset


def _as_json(file: SideFile, header: BatchHeader) -> dict[str, Any]:
    from tailrace.records.compression import Compression

    return {
        "partition": file.partition,
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "codec": Compression(header.compression).name.lower() if header.compression <= max(Compression) else "unknown",
        "timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id if header.producer_id >= 0 else None,
        "leader_epoch": header.leader_epoch,
        "reason": file.reason,
        "file": file.name,
    }


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


@command.command("list")
@click.argument("topic")
@_partition
@_uri
@client_options
def list_batches(topic: str, partition: int | None, uri: str | None, bootstrap: str, as_json: bool) -> None:
    """List the quarantined batches of TOPIC.

    All columns but REASON show what the header of the batch claims. REASON is why the first batch of the same file
    could not be decoded.

    \b
    Example:
      tailrace archive quarantine list orders
    """
    with _opened(bootstrap, topic, uri) as (location, snapshot):
        rows = [_as_json(file, header) for file, header, _ in _batches(location, snapshot, partition)]
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        click.echo(f"no quarantined batches in the archive of {topic}", err=True)
        return
    names = ("PARTITION", "OFFSETS", "RECORDS", "BYTES", "CODEC", "TIME", "PRODUCER ID", "REASON")
    print_table(
        names,
        [
            (
                row["partition"],
                f"{row['first_offset']}-{row['last_offset']}",
                row["records"],
                row["bytes"],
                row["codec"],
                _time(row["timestamp_ms"]),
                row["producer_id"],
                row["reason"],
            )
            for row in rows
        ],
    )


@command.command()
@click.argument("topic")
@click.argument("partition", type=WholeNumber(0, MAX_INT32))
@click.argument("offset", type=WholeNumber(0, MAX_INT64))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the raw batch to a file.")
@_uri
@client_options
def show(
    topic: str, partition: int, offset: int, output: Path | None, uri: str | None, bootstrap: str, as_json: bool
) -> None:
    """Show a quarantined batch of TOPIC and its first bytes.

    Shows the batch that contains OFFSET of PARTITION.

    \b
    Examples:
      tailrace archive quarantine show orders 0 1200
      tailrace archive quarantine show orders 0 1200 --output batch.bin
    """
    from tailrace.client.errors import ClientError

    with _opened(bootstrap, topic, uri) as (location, snapshot):
        found = [
            (file, header, data)
            for file, header, data in _batches(location, snapshot, partition)
            if header.base_offset <= offset <= header.last_offset
        ]
    if not found:
        raise ClientError(
            f"offset {offset} of {topic}-{partition} is not in a quarantined batch; list these batches with: "
            f"tailrace archive quarantine list {topic}"
        )
    file, header, data = found[0]
    if output is not None:
        output.write_bytes(data)
    row = _as_json(file, header)
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        click.echo(f"{name:14} {_time(value) if name == 'timestamp_ms' else value}")
    if output is not None:
        click.echo(f"{count_of(len(data), 'byte')} written to {output}", err=True)
        return
    for start in range(0, min(len(data), _SHOWN_BYTES), _LINE_BYTES):
        line = data[start : start + _LINE_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        click.echo(f"{start:08x}  {line.hex(' '):<{3 * _LINE_BYTES}} {text}")
    if len(data) > _SHOWN_BYTES:
        click.echo(f"… {len(data) - _SHOWN_BYTES} more bytes; write all with --output FILE")


@command.command()
@click.argument("topic")
@_partition
@client_options
def retry(topic: str, partition: int | None, bootstrap: str, as_json: bool) -> int:
    """Decode the quarantined batches of TOPIC again.

    Run this after an upgrade: it archives the records, and every reader then gets the records of the batches that
    the new version can decode. Exits with 1 if some still cannot be decoded; they stay quarantined. Archivers can
    keep running.

    \b
    Example:
      tailrace archive quarantine retry orders
    """
    from tailrace.archive.installation import require_packages
    from tailrace.archive.location import open_location
    from tailrace.client.archive import describe_archived

    require_packages()
    from tailrace.pipeline.archiving.commit import TopicArchiver
    from tailrace.pipeline.archiving.quarantine_retry import retry_quarantined

    found = describe_archived(bootstrap, topic)
    location = open_location(found.uri)
    try:
        location.check()
        archiver = TopicArchiver(bootstrap, found, location, lambda text: click.echo(f"warning: {text}", err=True))
        done = retry_quarantined(archiver, lambda file: partition is None or file.partition == partition)
    finally:
        location.close()
    if as_json:
        print_json(
            {
                "topic": topic,
                "decoded_batches": done.decoded_batches,
                "records": done.records,
                "left_batches": done.left_batches,
            }
        )
    else:
        batches, left = (
            "1 batch" if count == 1 else f"{count} batches" for count in (done.decoded_batches, done.left_batches)
        )
        click.echo(f"{batches} decoded, {count_of(done.records, 'record')} added; {left} left in quarantine")
    return _LEFT if done.left_batches else 0
