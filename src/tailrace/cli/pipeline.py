"""`tailrace pipeline`: run jobs on Spark that read topics and write topics, tables or archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.durations import DurationType
from tailrace.cli.options import MAX_INT64, PairType, WholeNumber, client_options, pairs_without_repeats
from tailrace.cli.output import count_of, print_json
from tailrace.cli.pipeline_archive import command as archive_command
from tailrace.cli.pipeline_compact import compact
from tailrace.cli.pipeline_replay import replay

if TYPE_CHECKING:
    from tailrace.pipeline.jobs.batches import Batch
    from tailrace.pipeline.jobs.declaration import Job, Option
    from tailrace.pipeline.jobs.query import RunSettings

#: Bounded, so that a job with a large backlog reports progress and can stop between batches.
_DEFAULT_MAX_OFFSETS = 1_000_000
_FILE = "tailrace.cli.pipeline.file"


@click.group("pipeline")
def command() -> None:
    """Run Spark jobs that process, archive or replay topics.

    \b
    Examples:
      tailrace pipeline run order_totals.py
      tailrace pipeline run order_totals.py --once --master spark://host:7077
      tailrace pipeline archive orders --to /srv/archive
      tailrace pipeline replay orders --to orders-again --since 2d
      tailrace pipeline compact orders
    """


command.add_command(archive_command)
command.add_command(replay)
command.add_command(compact)


class _RunCommand(click.Command):
    """A command whose help also shows the options of the job in the file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Click prints the help before it parses the arguments.
        ctx.meta[_FILE] = next((Path(each) for each in args if each.endswith(".py")), None)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        file: Path | None = ctx.meta[_FILE]
        if file is None or not file.is_file():
            return
        from tailrace.errors import ConfigError
        from tailrace.pipeline.jobs.declaration import load

        try:
            jobs = load(file)
        except ConfigError as error:
            formatter.write_paragraph()
            formatter.write_text(str(error))
            return
        for job in jobs.values():
            records = [record for each in _click_options(job) if (record := each.get_help_record(ctx)) is not None]
            with formatter.section(f"Options of job {job.name}"):
                if records:
                    formatter.write_dl(records)
                else:
                    formatter.write_text("none")


@command.command("run", cls=_RunCommand, context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("job_options", nargs=-1, type=click.UNPROCESSED, metavar="[JOB OPTIONS]...")
@click.option("--job", "job_name", metavar="NAME", help="Run this job, if FILE has several.")
@click.option("--once", is_flag=True, help="Process the records that exist now, in batches, then exit.")
@click.option(
    "--every", "every_ms", type=DurationType(), help="Start a batch this often.  [default: right after the last one]"
)
@click.option(
    "--max-offsets-per-trigger",
    type=WholeNumber(0, MAX_INT64),
    default=_DEFAULT_MAX_OFFSETS,
    show_default=True,
    help="Take at most this many offsets of each topic per batch; 0 for all.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Keep checkpoints under this directory, on any file system that Spark can use.  "
    "[default: $XDG_STATE_HOME/tailrace/pipeline/CLUSTER-ID]",
)
@click.option("--group", metavar="GROUP", help="Show progress in this group.  [default: tailrace-pipeline-JOB]")
@click.option("--master", default="local[*]", show_default=True, help="Spark master to run on.")
@click.option("--conf", type=PairType(), multiple=True, help="Set a Spark property. May be repeated.")
@client_options
def run(
    file: Path,
    job_options: tuple[str, ...],
    job_name: str | None,
    once: bool,
    every_ms: int | None,
    max_offsets_per_trigger: int,
    checkpoint: str | None,
    group: str | None,
    master: str,
    conf: tuple[tuple[str, str], ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Run a job of FILE until stopped.

    Prints a line for each batch.

    \b
    A job is a function from DataFrames to a DataFrame:
      from tailrace.pipeline.jobs import Table, Topic, job
      @job(source=Topic("orders", schema="id STRING, amount DOUBLE"), sink=Table("large-orders"))
      def large_orders(orders, *, least: float = 100.0):
          return orders.where(orders.amount >= least)

    A restarted job continues where it was: a topic gets every row at least once, a table exactly once. SIGTERM and
    Ctrl-C let the current batch finish; a second one does not wait for it. `tailrace group describe` shows what the
    job has processed.

    \b
    Examples:
      tailrace pipeline run large_orders.py --least 500
      tailrace pipeline run large_orders.py --once --checkpoint /var/lib/jobs
      tailrace pipeline run jobs.py --job large-orders --every 1m --master spark://host:7077
      tailrace pipeline run large_orders.py --help        # with the job's own options
    """
    if once and every_ms is not None:
        raise click.UsageError("--once stops at the current end: leave out --every.")
    if str(file).startswith("-"):
        raise click.UsageError(f"Give the file before the options of its job: {file} is not a file.")
    from tailrace.pipeline.spark.session import check_installation

    check_installation()
    from tailrace.pipeline.jobs.declaration import choose, load

    job = choose(load(file), job_name, file)
    values = parse_job_options(job, job_options)

    from tailrace.client import Groups
    from tailrace.client.cluster import describe_cluster
    from tailrace.pipeline.jobs.checkpoints import default_root, location
    from tailrace.pipeline.jobs.query import RunSettings
    from tailrace.pipeline.jobs.run import check_topics
    from tailrace.pipeline.source.progress import GROUP_PREFIX

    check_topics(job, Groups(bootstrap))
    root = default_root(describe_cluster(bootstrap).cluster_id) if checkpoint is None else checkpoint
    settings = RunSettings(
        bootstrap,
        location(root, job.name),
        GROUP_PREFIX + job.name if group is None else group,
        once,
        every_ms,
        max_offsets_per_trigger or None,
        values,
    )
    _run(job, settings, master, pairs_without_repeats(conf, "--conf"), as_json)


def _run(job: Job[...], settings: RunSettings, master: str, conf: dict[str, str], as_json: bool) -> None:
    from tailrace.pipeline.jobs.run import Stop, run_job
    from tailrace.pipeline.spark.session import spark_session, stop_spark

    def report(batch: Batch) -> None:
        if as_json:
            print_json(batch.as_json(job.name))
        else:
            click.echo(batch.as_text())

    def say(line: str) -> None:
        click.echo(line, err=True)

    say(f"{_described(job)}; group {settings.group}, checkpoint {settings.checkpoint}")
    stop = Stop()
    with stop.on_signals():
        spark = spark_session(f"tailrace pipeline: {job.name}", master=master, conf=conf)
        try:
            # Again, because Spark has installed its own handler of Ctrl-C.
            with stop.on_signals():
                outcome = run_job(
                    spark, job, settings, report=report, warn=lambda text: say(f"warning: {text}"), stop=stop
                )
        finally:
            stop_spark(spark)
    how = "done" if outcome.stopped_by is None else "stopped; restart it to continue from here"
    batches = "1 batch" if outcome.batches == 1 else f"{outcome.batches} batches"
    say(f"{batches}, {count_of(outcome.rows, 'row')}: {how}")
    if outcome.stopped_by is not None and outcome.stopped_by.name == "SIGINT":
        raise click.Abort


def _described(job: Job[...]) -> str:
    """`job totals: topic orders to topic order-totals`."""
    from tailrace.pipeline.jobs.declaration import Table

    sources = " and ".join(f"topic {source.name}" for source in job.sources)
    sink = f"table {job.sink.path}" if isinstance(job.sink, Table) else f"topic {job.sink.name}"
    return f"job {job.name}: {sources} to {sink}"


# --- options of jobs


def parse_job_options(job: Job[...], arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the values of a job's own options; usage errors list these options."""
    parser = click.Command(job.name, params=list(_click_options(job)), add_help_option=False)
    try:
        return dict(parser.make_context(job.name, list(arguments)).params)
    except click.UsageError as error:
        names = ", ".join(_flag(option) for option in job.options)
        own = f"job '{job.name}' has the options {names}" if names else f"job '{job.name}' has no options of its own"
        raise click.UsageError(f"{error.format_message().rstrip('.')} ({own}).") from error


def _click_options(job: Job[...]) -> list[click.Option]:
    taken = {flag for parameter in run.params for flag in parameter.opts}
    for option in job.options:
        if _flag(option) in taken:
            raise click.UsageError(
                f"option '{option.name}' of job '{job.name}' is also an option of this command: rename it."
            )
    return [_click_option(option) for option in job.options]


def _click_option(option: Option) -> click.Option:
    flag = _flag(option)
    if option.type is bool:
        names = [f"{flag}/--no-{flag[2:]}", option.name]
        return click.Option(names, default=bool(option.default), show_default=True)
    if option.default is None:
        return click.Option([flag, option.name], type=option.type, required=True)
    return click.Option([flag, option.name], type=option.type, default=option.default, show_default=True)


def _flag(option: Option) -> str:
    return "--" + option.name.replace("_", "-")
