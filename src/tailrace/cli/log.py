"""`tailrace log`: inspect the files of a partition log, whether or not a broker is running."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from tailrace.cli.output import count_of, headers_to_json, iso, print_json, print_table, put_bytes
from tailrace.errors import StorageError

if TYPE_CHECKING:
    from tailrace.cli.log_files import Corruption, IndexEntry, StoredBatch
    from tailrace.records.record import Record

_BATCH_COLUMNS = (
    ("POSITION", 10),
    ("OFFSETS", 17),
    ("RECORDS", 7),
    ("SIZE", 8),
    ("CODEC", 6),
    ("FIRST TIMESTAMP", 24),
    ("MAX TIMESTAMP", 24),
    ("PRODUCER", 8),
    ("EPOCH", 5),
    ("SEQUENCE", 8),
    ("LEADER EPOCH", 12),
    ("CRC", 3),
    ("FLAGS", 0),
)


@click.group("log")
def command() -> None:
    """Inspect the files of a partition log.

    \b
    Example:
      tailrace log dump data/orders-0/00000000000000000000.log
    """


@command.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--records", is_flag=True, help="Also print every record of each batch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
def dump(path: Path, records: bool, as_json: bool) -> None:
    """Print the contents of a .log, .index or .timeindex FILE.

    Prints the batches of a .log, and the entries of an index.

    Reports the position of each damaged or truncated batch, and exits with 1 if there is one. While a broker is
    writing to a log, its last batch may look truncated.

    \b
    Examples:
      tailrace log dump data/orders-0/00000000000000000000.log
      tailrace log dump data/orders-0/00000000000000000000.log --records --json
      tailrace log dump data/orders-0/00000000000000000000.timeindex
    """
    with path.open("rb") as stream:
        if path.suffix == ".log":
            corruptions = _dump_batches(stream, records, as_json)
        elif path.suffix in (".index", ".timeindex"):
            if records:
                raise click.UsageError("--records works only with .log files: an index has no records.")
            corruptions = _dump_index(stream, path, as_json)
        else:
            raise click.UsageError(f"'{path}' is not a .log, .index or .timeindex file.")
    if corruptions:
        first = corruptions[0]
        places = count_of(len(corruptions), "place")
        raise StorageError(f"{path} is corrupt in {places}, first at position {first.position}: {first.reason}")


def _dump_batches(stream: IO[bytes], with_records: bool, as_json: bool) -> list[Corruption]:
    from tailrace.cli.log_files import Corruption, read_batches, read_records

    corruptions: list[Corruption] = []
    if not as_json:
        click.echo(_batch_line([title for title, _ in _BATCH_COLUMNS]))
    for batch in read_batches(stream):
        if isinstance(batch, Corruption):
            corruptions.append(batch)
            _print_corruption(batch, as_json)
            continue
        # The records of a damaged batch cannot be trusted.
        readable = with_records and batch.crc_valid
        decoded = list(read_records(batch)) if readable else []
        found = [record for record in decoded if not isinstance(record, Corruption)]
        damage = [record for record in decoded if isinstance(record, Corruption)]
        if as_json:
            described = _batch_to_json(batch)
            if readable:
                described["records"] = [_record_to_json(record) for record in found]
            print_json(described)
        else:
            click.echo(_batch_line(_batch_cells(batch)))
            for record in found:
                click.echo(_record_line(record))
        for corruption in damage:
            corruptions.append(corruption)
            _print_corruption(corruption, as_json)
    return corruptions


def _print_corruption(corruption: Corruption, as_json: bool) -> None:
    """Report the damage where it occurs between the batches."""
    if as_json:
        print_json({"position": corruption.position, "corrupt": corruption.reason})
    else:
        click.echo(f"{corruption.position:<10}  CORRUPT: {corruption.reason}")


def _batch_line(cells: Iterable[object]) -> str:
    pairs = zip(cells, _BATCH_COLUMNS, strict=True)
    return "  ".join(str(cell).ljust(width) for cell, (_, width) in pairs).rstrip()


def _batch_cells(batch: StoredBatch) -> list[object]:
    header = batch.header
    return [
        batch.position,
        f"{header.base_offset}-{header.last_offset}",
        header.record_count,
        header.size,
        _codec(header.compression),
        iso(header.base_timestamp),
        iso(header.max_timestamp),
        _or_dash(header.producer_id),
        _or_dash(header.producer_epoch),
        _or_dash(header.base_sequence),
        _or_dash(header.leader_epoch),
        "ok" if batch.crc_valid else "BAD",
        ",".join(_flags(batch)),
    ]


def _batch_to_json(batch: StoredBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "size": header.size,
        "compression": _codec(header.compression),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.leader_epoch,
        "crc": header.crc,
        "crc_valid": batch.crc_valid,
        "flags": _flags(batch),
    }


def _flags(batch: StoredBatch) -> list[str]:
    from tailrace.records.batch import DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT

    header = batch.header
    flags = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "append-time": bool(header.attributes & LOG_APPEND_TIME_BIT),
        # With this flag, the first timestamp is the time after which tombstones may be removed.
        "delete-horizon": bool(header.attributes & DELETE_HORIZON_BIT),
    }
    return [name for name, present in flags.items() if present]


def _codec(number: int) -> str:
    from tailrace.records.compression import Compression

    try:
        return Compression(number).name.lower()
    except ValueError:
        return f"codec {number}"


def _or_dash(number: int) -> object:
    return "-" if number < 0 else number


def _record_line(record: Record) -> str:
    parts = [f"  offset {record.offset}", iso(record.timestamp), f"key {_shown(record.key)}"]
    parts.append(f"value {_shown(record.value)}")
    parts.extend(f"{name}={_shown(content)}" for name, content in record.headers)
    return "  ".join(parts)


def _shown(content: bytes | None) -> str:
    """Show bytes to a person: UTF-8 as quoted text, anything else as a Python bytes literal."""
    if content is None:
        return "null"
    try:
        return repr(content.decode())
    except UnicodeDecodeError:
        return repr(content)


def _record_to_json(record: Record) -> dict[str, Any]:
    result: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(result, "key", record.key)
    put_bytes(result, "value", record.value)
    result["headers"] = headers_to_json(record.headers)
    return result


def _dump_index(stream: IO[bytes], path: Path, as_json: bool) -> list[Corruption]:
    from tailrace.cli.log_files import Corruption, base_offset_of, read_offset_index, read_time_index

    try:
        base_offset = base_offset_of(str(path))
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    by_time = path.suffix == ".timeindex"
    entries: list[IndexEntry] = []
    corruptions: list[Corruption] = []
    for entry in (read_time_index if by_time else read_offset_index)(stream, base_offset):
        if isinstance(entry, Corruption):
            corruptions.append(entry)
        else:
            entries.append(entry)
    names = ("timestamp", "offset") if by_time else ("offset", "position")
    if as_json:
        for entry in entries:
            print_json({names[0]: entry.key, names[1]: entry.value})
    elif by_time:
        print_table(("TIMESTAMP", "TIME", "OFFSET"), [(e.key, iso(e.key), e.value) for e in entries])
    else:
        print_table(("OFFSET", "POSITION"), [(e.key, e.value) for e in entries])
    return corruptions
