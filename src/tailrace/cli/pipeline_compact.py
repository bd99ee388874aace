"""`tailrace pipeline compact`: merge small files in the archives of topics, and remove what expired."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.durations import DurationType
from tailrace.cli.options import MAX_INT32, PairType, ParamType, WholeNumber, client_options, pairs_without_repeats
from tailrace.cli.output import count_of, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipeline.archiving.compacting import CompactionReport, CompactionSettings
    from tailrace.pipeline.archiving.key_snapshots import KeySnapshot

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_MAX_FILE_BYTES = 1 << 30


class SizeType(ParamType):
    """A size in bytes, or with the suffix K, M or G, in steps of 1,024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"'{value}' is not a size such as 128M or 1G.", param, ctx)
        size = int(match[1]) * _UNITS[match[2].upper()]
        if not 1 <= size <= _MAX_FILE_BYTES:
            self.fail(f"{value} is not between 1 byte and 1G: files are built in memory.", param, ctx)
        return size


@click.command("compact")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--target-size",
    "target_bytes",
    type=SizeType(),
    default="128M",
    show_default=True,
    help="Aim for files of this size; files below half of it count as small.",
)
@click.option(
    "--min-files",
    type=WholeNumber(2, MAX_INT32),
    default=4,
    show_default=True,
    help="Merge only runs of at least this many small files.",
)
@click.option(
    "--grace",
    "grace_ms",
    type=DurationType(),
    default="1h",
    show_default=True,
    help="Keep unused files for this long, for readers that still have them open.",
)
@click.option("--snapshot", "snapshot_uri", metavar="URI", help="Also write the latest value of each key below URI.")
@click.option("--dry-run", is_flag=True, help="Only print what the command would do.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master to run on.")
@click.option("--conf", type=PairType(), multiple=True, help="Set a Spark property. May be repeated.")
@client_options
def compact(
    topics: tuple[str, ...],
    target_bytes: int,
    min_files: int,
    grace_ms: int,
    snapshot_uri: str | None,
    dry_run: bool,
    master: str,
    conf: tuple[tuple[str, str], ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Merge small files of archives, and remove expired ones.

    A file expires when all its records are older than `tailrace.archive.retention.ms` or were deleted by DeleteRecords.
    Readers and archivers can keep running: a replaced file stays for the grace period. A later run deletes it, along
    with files that killed writers left behind. The command starts Spark only to merge files or to write a snapshot.

    A snapshot is a Parquet table of the last value of each key, below URI/topic=TOPIC/version=N. Spark must be able to
    write to URI. The snapshot is complete when it has a file _offsets.json, which says what it covers.

    \b
    Examples:
      tailrace pipeline compact orders payments
      tailrace pipeline compact orders --dry-run
      tailrace pipeline compact orders --target-size 256M --min-files 10 --grace 1d
      tailrace pipeline compact customers --snapshot /data/snapshots
    """
    from tailrace.pipeline.spark.session import check_installation

    check_installation()
    from tailrace.pipeline.archiving.compacting import CompactionSettings

    settings = CompactionSettings(target_bytes, min_files, grace_ms)
    with ExitStack() as stack:
        spark = _LazySpark(stack, master, pairs_without_repeats(conf, "--conf"))
        for topic in dict.fromkeys(topics):
            _compact(bootstrap, topic, settings, None if dry_run else spark, snapshot_uri, as_json)


class _LazySpark:
    """Starts Spark when it is first needed and stops it at the end of the command."""

    def __init__(self, stack: ExitStack, master: str, conf: dict[str, str]) -> None:
        self._stack = stack
        self._master = master
        self._conf = conf
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        if self._session is None:
            self._session = self._stack.enter_context(_running(self._master, self._conf))
        return self._session


@contextmanager
def _running(master: str, conf: dict[str, str]) -> Iterator[SparkSession]:
    from tailrace.pipeline.spark.session import spark_session, stopping

    session = spark_session("tailrace pipeline: compact", master=master, conf=conf)
    with stopping(session):
        yield session


def _compact(
    bootstrap: str,
    topic: str,
    settings: CompactionSettings,
    spark: _LazySpark | None,
    snapshot_uri: str | None,
    as_json: bool,
) -> None:
    from tailrace.pipeline.archiving.compacting import Compaction

    compaction = Compaction(bootstrap, topic, settings)
    try:
        plan = compaction.plan()
        if spark is None:
            _print(compaction.report_of(plan), None, as_json, is_dry_run=True)
            return
        from tailrace.pipeline.archiving.compaction_tasks import merger_on
        from tailrace.pipeline.archiving.key_snapshots import write_key_snapshot

        status, _ = compaction.head()
        report = compaction.run(plan, lambda snapshot, merges: merger_on(spark.session(), status.uri)(snapshot, merges))
        written = None
        if snapshot_uri is not None:
            written = write_key_snapshot(spark.session(), *compaction.head(), snapshot_uri)
        _print(report, written, as_json)
    finally:
        compaction.close()


def _print(report: CompactionReport, written: KeySnapshot | None, as_json: bool, *, is_dry_run: bool = False) -> None:
    if as_json:
        document = {**report.as_json(), "dry_run": is_dry_run}
        print_json({**document, "snapshot": None if written is None else written.as_json()})
        return
    for line in _lines(report, is_dry_run):
        click.echo(f"{report.topic}: {line}")
    if written is not None:
        how = "already exists" if written.was_there else "written"
        click.echo(f"{report.topic}: snapshot of {count_of(written.keys, 'key')} {how} at {written.path}")


def _lines(report: CompactionReport, is_dry_run: bool) -> Iterator[str]:
    """Describe what was done, or would be, one line per action; a single line if there is nothing to do."""
    if report.merged_files:
        merged = f"{count_of(report.merged_files, 'file')} of {_mebibytes(report.merged_bytes)}"
        yield f"{merged} {'would become' if is_dry_run else 'became'} {count_of(report.new_files, 'file')}"
    if report.starts:
        begins = ", ".join(f"{number} at {start}" for number, start in sorted(report.starts.items()))
        taken_out = "would be removed" if is_dry_run else "removed"
        yield f"{count_of(report.expired_files, 'expired file')} {taken_out}; partitions now begin: {begins}"
    if report.deleted_files:
        deleted = f"{count_of(report.deleted_files, 'file')} of {_mebibytes(report.deleted_bytes)}"
        yield f"{deleted}, unused, {'would be deleted' if is_dry_run else 'deleted'}"
    if report.waiting_files:
        yield f"{count_of(report.waiting_files, 'file')} are unused: a later run deletes them"
    if not (report.merged_files or report.starts or report.deleted_files):
        yield f"nothing to do at version {report.version}"


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
