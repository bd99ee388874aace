"""`tailrace pipeline replay`: copy a range of a topic, or of an archive, to another topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.options import MAX_INT32, MAX_INT64, PairType, ParamType, WholeNumber, client_options
from tailrace.cli.options import pairs_without_repeats as without_repeats
from tailrace.cli.output import count_of, print_json
from tailrace.cli.sql import WhenType

if TYPE_CHECKING:
    from tailrace.pipeline.replay.plan import Replay
    from tailrace.pipeline.replay.replaying import PreparedReplay, ReplayedBatch

_FORMATS = ("json", "avro", "text", "raw")
_DEFAULT_MAX_OFFSETS = 200_000
#: Spark gives a worker ten seconds to start; on a busy machine a replay would fail for no reason.
_PATIENCE = {"spark.python.authenticate.socketTimeout": "60s"}


class OffsetType(ParamType):
    """`PARTITION=OFFSET` for one partition, or `OFFSET` for all others."""

    name = "[P=]OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, int]:
        if isinstance(value, tuple):
            return value
        partition, separator, offset = str(value).rpartition("=")
        number = WholeNumber(0, MAX_INT64).convert(offset, param, ctx)
        return (WholeNumber(0, MAX_INT32).convert(partition, param, ctx) if separator else None), number


class MomentType(WhenType):
    """Like `WhenType`, but keeps the text: `2h` means another time when the replay is resumed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        moment = super().convert(value, param, ctx)
        return (moment, str(value).strip()) if isinstance(moment, int) else None


@click.command("replay")
@click.argument("source")
@click.option("--to", "target", required=True, metavar="TOPIC", help="Write to this topic, which must exist.")
@click.option(
    "--from-offset",
    "from_offsets",
    type=OffsetType(),
    multiple=True,
    help="Start at this offset, in partition P or in all others.  [default: the earliest]",
)
@click.option(
    "--to-offset",
    "to_offsets",
    type=OffsetType(),
    multiple=True,
    help="End before this offset, in partition P or in all others.  [default: the current end]",
)
@click.option(
    "--since",
    type=MomentType("earliest"),
    help="Start at the first record at or after this time, or this long ago (2h).",
)
@click.option("--until", type=MomentType("latest"), help="End before the first record at or after this time.")
@click.option(
    "--partition",
    "partitions",
    type=WholeNumber(0, MAX_INT32),
    multiple=True,
    help="Replay only this partition. May be repeated.",
)
@click.option("--where", metavar="EXPR", help="Replay only records that match this Spark SQL expression.")
@click.option(
    "--format", "format_", type=click.Choice(_FORMATS), help="Decode values in this format, for the fields in --where."
)
@click.option("--schema", help="Fields of the values, as in `tailrace sql --schema`.")
@click.option(
    "--timestamps",
    type=click.Choice(("original", "now")),
    default="original",
    show_default=True,
    help="Keep the timestamps of records, or set them to the time of the replay.",
)
@click.option(
    "--partition-by",
    type=click.Choice(("source", "key")),
    default="source",
    show_default=True,
    help="Write to the partition with the same number, or choose it by the key.",
)
@click.option(
    "--rate", type=WholeNumber(1, MAX_INT64), help="Write at most this many records per second.  [default: no limit]"
)
@click.option(
    "--max-offsets-per-batch",
    type=WholeNumber(1, MAX_INT64),
    default=_DEFAULT_MAX_OFFSETS,
    show_default=True,
    help="Read at most this many offsets between two checkpoints.",
)
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Skip batches that cannot be decoded, and count them; by default they are errors.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Keep the checkpoint in this directory, or at a URI of file:, s3:, webhdfs: or hdfs:.  "
    "[default: $XDG_STATE_HOME/tailrace/pipeline/CLUSTER-ID/replay-SOURCE-to-TOPIC]",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master to run on.")
@click.option("--conf", type=PairType(), multiple=True, help="Set a Spark property. May be repeated.")
@client_options
def replay(
    source: str,
    target: str,
    from_offsets: tuple[tuple[int | None, int], ...],
    to_offsets: tuple[tuple[int | None, int], ...],
    since: tuple[int, str] | None,
    until: tuple[int, str] | None,
    partitions: tuple[int, ...],
    where: str | None,
    format_: Any,
    schema: str | None,
    timestamps: Any,
    partition_by: Any,
    rate: int | None,
    max_offsets_per_batch: int,
    skip_corrupt: bool,
    checkpoint: str | None,
    master: str,
    conf: tuple[tuple[str, str], ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Copy a range of SOURCE to another topic.

    Keys, values, headers and the order in each partition stay the same.

    SOURCE is a topic, including its archived offsets. If the brokers no longer have the topic, give its directory
    topic=NAME/id=ID in an archive. Partition 3 goes to partition 3. The target needs at least as many partitions,
    unless you use --partition-by key, which keeps only the order of each key.

    Columns for --where: key, value, headers, topic, partition, offset, timestamp, timestampType. With --format, the
    columns of `tailrace sql`: the fields of values, and _key, _offset and so on.

    The command prints a line for each batch. If a replay was stopped or failed, the same command resumes it; if it is
    done, the same command starts a new one. Every record is written at least once: after a crash, the replay repeats
    everything after the last finished batch, and only there can duplicates occur. SIGTERM and Ctrl-C let the current
    batch finish; a second one does not wait for it.

    \b
    Examples:
      tailrace pipeline replay orders --to orders-again
      tailrace pipeline replay orders --to orders-test --since 2026-01-31 --until 2026-02-01 --rate 1000
      tailrace pipeline replay orders --to large-orders --format json --where "amount > 500" --timestamps now
      tailrace pipeline replay orders --to orders-fixed --partition 3 --from-offset 3=1200 --to-offset 3=1300
      tailrace pipeline replay s3://bucket/archive/topic=orders/id=u5BzLQCCT-yLH1Yuq5hc2w --to orders
    """
    if (from_offsets and since is not None) or (to_offsets and until is not None):
        raise click.UsageError("Give offsets or times, not both for the same end.")
    if where is None and (format_ is not None or schema is not None):
        raise click.UsageError("--format and --schema need --where.")
    if schema is not None and format_ is None:
        raise click.UsageError("--schema needs --format: give the format of the values.")
    if where is not None and not where.strip():
        raise click.UsageError("--where must not be empty.")
    if since is not None and until is not None and since[0] >= until[0]:
        raise click.UsageError("--since must be before --until.")
    from tailrace.pipeline.spark.session import check_installation

    check_installation()
    from tailrace.pipeline.replay.plan import Bounds, Moment, Replay

    bounds = Bounds(
        _offsets(from_offsets, "--from-offset"),
        _offsets(to_offsets, "--to-offset"),
        None if since is None else Moment(*since),
        None if until is None else Moment(*until),
        partitions,
    )
    asked = Replay(
        bootstrap,
        source,
        target,
        bounds,
        where,
        format_,
        schema,
        timestamps,
        partition_by,
        rate,
        max_offsets_per_batch,
        skip_corrupt,
    )
    _run(asked, checkpoint, master, without_repeats(conf, "--conf"), as_json)


def _offsets(pairs: tuple[tuple[int | None, int], ...], option: str) -> dict[int | None, int]:
    found: dict[int | None, int] = {}
    for partition, offset in pairs:
        if partition in found:
            which = "all partitions" if partition is None else f"partition {partition}"
            raise click.UsageError(f"{option} is given twice for {which}.")
        found[partition] = offset
    return found


def _run(replay: Replay, checkpoint: str | None, master: str, conf: dict[str, str], as_json: bool) -> None:
    from tailrace.pipeline.replay.replaying import prepare

    prepared = prepare(replay, checkpoint, _warn)
    try:
        progress = prepared.progress
        if prepared.is_resumed:
            _say(f"resuming after {_batches(progress.batches)}")
        if not progress.left:
            prepared.checkpoint.remove()
            _say(f"nothing to replay: {replay.source} has no records in that range")
            return
        partitions = count_of(len(progress.ranges), "partition")
        _say(
            f"replay {replay.source} to topic {replay.target}: {progress.left:,} offsets of {partitions}; "
            f"checkpoint {prepared.checkpoint.uri}"
        )
        _run_on_spark(prepared, master, conf, as_json)
    finally:
        prepared.close()


def _run_on_spark(prepared: PreparedReplay, master: str, conf: dict[str, str], as_json: bool) -> None:
    from tailrace.pipeline.jobs.run import Stop
    from tailrace.pipeline.replay.replaying import run_replay
    from tailrace.pipeline.spark.session import spark_session, stop_spark

    def report(batch: ReplayedBatch) -> None:
        if as_json:
            print_json(batch.as_json(prepared.replay))
        else:
            click.echo(batch.as_text())

    name = f"tailrace pipeline: replay {prepared.source.topic}"
    stop = Stop()
    with stop.on_signals():
        spark = spark_session(name, master=master, conf={**_PATIENCE, **conf})
        try:
            # Again, because Spark has installed its own handler of Ctrl-C.
            with stop.on_signals():
                outcome = run_replay(spark, prepared, report=report, warn=_warn, stop=stop)
        finally:
            stop_spark(spark)
    how = "done" if outcome.stopped_by is None else "stopped; restart it to continue from here"
    _say(f"{_batches(outcome.batches)}, {count_of(outcome.records, 'record')}: {how}")
    if outcome.stopped_by is not None and outcome.stopped_by.name == "SIGINT":
        raise click.Abort


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


def _say(line: str) -> None:
    click.echo(line, err=True)


def _warn(text: str) -> None:
    _say(f"warning: {text}")
