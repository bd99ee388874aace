"""`tailrace archive`: show what is archived of a topic, and verify the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.archive_quarantine import command as quarantine
from tailrace.cli.options import client_options
from tailrace.cli.output import count_of, print_json, print_table

if TYPE_CHECKING:
    from tailrace.archive.verify import Report
    from tailrace.client.archive import ArchiveStatus

_FAILED = 1


@click.group("archive")
def command() -> None:
    """Inspect and verify the archives of topics.

    \b
    Example:
      tailrace archive status orders
    """


command.add_command(quarantine)


@command.command()
@click.argument("topic")
@client_options
def status(topic: str, bootstrap: str, as_json: bool) -> None:
    """Show which offsets of TOPIC are archived.

    START is the first offset in the archive, END the first one after it. LAG is how many offsets are not archived yet.
    A warning names each broker that holds the topic and cannot read the archive. The command counts quarantined
    batches if this machine can read the archive.

    \b
    Example:
      tailrace archive status orders
    """
    from tailrace.client import Topics
    from tailrace.client.archive import describe, readers
    from tailrace.storage.checkpoints import encode_uuid

    found = describe(bootstrap, topic)
    brokers = readers(bootstrap, topic) if found.is_enabled else []
    latest = {each.partition: each.latest_offset for each in Topics(bootstrap).describe(topic).partitions}
    rows = [_row(found, number, latest.get(number)) for number in range(found.partition_count)]
    quarantined, unknown = _quarantined(found)
    if as_json:
        print_json(
            {
                "topic": topic,
                "topic_id": encode_uuid(found.lineage),
                "enabled": found.is_enabled,
                "uri": found.uri,
                "retention_ms": found.retention_ms,
                "version": found.version,
                "manifest": found.manifest or None,
                "partitions": rows,
                "quarantined_batches": quarantined,
                "brokers": [{"id": each.broker_id, "read_failure": each.failure} for each in brokers],
            }
        )
        return
    if not found.is_enabled:
        click.echo(f"{topic} is not archived; archive it with: tailrace pipeline archive {topic} --to URI", err=True)
        if not found.version:
            return
    click.echo(f"{topic} is archived to {found.uri}, version {found.version}")
    print_table(
        ("PARTITION", "START", "END", "DELETED BELOW", "LATEST", "LAG"),
        [(row["partition"], row["start"], row["end"], row["deleted_below"], row["latest"], row["lag"]) for row in rows],
    )
    if quarantined:
        click.echo(
            f"Warning: {_quarantined_batches(quarantined)}; list them with: tailrace archive quarantine list {topic}",
            err=True,
        )
    if unknown is not None:
        click.echo(f"Cannot count quarantined batches on this machine: {unknown}", err=True)
    for each in brokers:
        if each.failure is not None:
            click.echo(
                f"Warning: broker {each.broker_id} cannot read the archive: {each.failure}; until it can, it "
                f"removes nothing of {topic} from its disk",
                err=True,
            )


def _quarantined_batches(count: int) -> str:
    batches = "1 quarantined batch" if count == 1 else f"{count} quarantined batches"
    return f"{batches}, kept as produced"


def _quarantined(found: ArchiveStatus) -> tuple[int | None, str | None]:
    """Count the quarantined batches of an archive, or say why this machine cannot."""
    from tailrace.archive.errors import ArchiveError
    from tailrace.archive.location import open_location
    from tailrace.archive.manifest import load_snapshot

    if not found.version:
        return 0, None
    try:
        location = open_location(found.uri)
        try:
            return load_snapshot(location, found.archive).quarantined_batches, None
        finally:
            location.close()
    except ArchiveError as error:
        return None, str(error)


def _row(found: ArchiveStatus, number: int, latest: int | None) -> dict[str, Any]:
    start, end = found.partitions.get(number, (None, None))
    first = max(end or 0, found.deleted_below.get(number, 0))
    return {
        "partition": number,
        "start": start,
        "end": end,
        "deleted_below": found.deleted_below.get(number),
        "latest": latest,
        "lag": None if latest is None else max(0, latest - first),
    }


@command.command()
@click.argument("topic")
@click.option("--uri", help="URI of the archive, if this machine needs a different one than the brokers.")
@client_options
def verify(topic: str, uri: str | None, bootstrap: str, as_json: bool) -> int:
    """Check the archive of TOPIC against its manifests.

    Reads the whole archive.

    Checks that every file exists and has the right size, checksum, rows and order, and that no offset is missing.
    Exits with 1 if anything is wrong. Counts files that no manifest names; they do no harm.

    \b
    Example:
      tailrace archive verify orders
    """
    from dataclasses import replace

    from tailrace.archive.installation import require_packages
    from tailrace.archive.location import open_location

    require_packages()
    from tailrace.archive.verify import verify as verify_archive
    from tailrace.client.archive import describe_archived

    found = describe_archived(bootstrap, topic)
    archive = found.archive if uri is None else replace(found.archive, uri=uri)
    location = open_location(archive.uri)
    try:
        location.check()
        report = verify_archive(location, archive, found.partitions)
    finally:
        location.close()
    if as_json:
        print_json(_as_json(topic, archive.uri, report))
    else:
        _print(topic, archive.uri, report)
    return 0 if report.is_sound else _FAILED


def _as_json(topic: str, uri: str, report: Report) -> dict[str, Any]:
    return {
        "topic": topic,
        "uri": uri,
        "version": report.version,
        "files": report.files,
        "rows": report.rows,
        "bytes": report.bytes,
        "quarantined_batches": report.quarantined_batches,
        "sound": report.is_sound,
        "findings": [
            {"problem": finding.problem.value, "file": finding.name, "message": finding.message}
            for finding in report.findings
        ],
        "orphans": [{"file": orphan.name, "bytes": orphan.size} for orphan in report.orphans],
    }


def _print(topic: str, uri: str, report: Report) -> None:
    files, rows = count_of(report.files, "file"), count_of(report.rows, "row")
    size = f"{report.bytes / (1 << 20):.1f} MiB"
    click.echo(f"{topic} at {uri}, version {report.version}: {files}, {rows}, {size}")
    for finding in report.findings:
        click.echo(f"{finding.problem.value}: {finding.name}: {finding.message}")
    if report.orphans:
        total = sum(orphan.size for orphan in report.orphans)
        click.echo(f"{count_of(len(report.orphans), 'file')} that no manifest names ({total} bytes): unused")
    if report.quarantined_batches:
        batches = _quarantined_batches(report.quarantined_batches)
        click.echo(f"{batches}; list them with: tailrace archive quarantine list {topic}")
    click.echo("the archive is sound" if report.is_sound else f"{count_of(len(report.findings), 'problem')} found")
