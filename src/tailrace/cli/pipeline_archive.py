"""`tailrace pipeline archive`: archive topics as Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tailrace.cli.durations import DurationType
from tailrace.cli.options import PairType, client_options, pairs_without_repeats
from tailrace.cli.output import count_of, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.errors import TailraceError
    from tailrace.pipeline.archiving.commit import TopicArchiver
    from tailrace.pipeline.archiving.round import Round


@click.command("archive")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--to",
    "uri",
    metavar="URI",
    help="Archive to this directory, or to a URI that begins with file:, s3:, webhdfs: or hdfs:.  "
    "[default: the topic's tailrace.archive.uri]",
)
@click.option("--once", is_flag=True, help="Archive the records that exist now, then exit.")
@click.option(
    "--every",
    "every_ms",
    type=DurationType(),
    help="Archive new records this often, or as soon as a partition has 128 MB of them.  [default: 10m]",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master to run on.")
@click.option("--conf", type=PairType(), multiple=True, help="Set a Spark property. May be repeated.")
@client_options
def command(
    topics: tuple[str, ...],
    uri: str | None,
    once: bool,
    every_ms: int | None,
    master: str,
    conf: tuple[tuple[str, str], ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Archive topics as Parquet files until stopped.

    Prints a line for each round.

    If a topic is not archived yet, the command sets its tailrace.archive.enable, and tailrace.archive.uri to the value
    of --to. From then on, brokers keep records until they are archived, remove them by local.retention.ms, and read old
    ones from the archive for every Kafka client.

    Topics are independent: if a topic or the location of its archive is missing, the command archives the others and
    retries that one. With --once it finishes the others and then exits with 1. Batches that cannot be decoded are
    quarantined in the archive as produced; see tailrace archive quarantine.

    Every record is archived exactly once, whatever is killed. Concurrent archivers of a topic are safe: only one commit
    wins. A restarted archiver continues where the archive ends. SIGTERM and Ctrl-C let the current round finish; a
    second one does not wait for it. The group tailrace-pipeline-archive-TOPIC shows the progress.

    A round writes one file for each partition with new records, or several of about 128 MB. With the default of
    --every, a partition with little traffic gets at most 144 files a day. Records that are not archived yet are read
    from the brokers. Credentials come from the environment, here and on every Spark worker.

    \b
    Examples:
      tailrace pipeline archive orders --to /srv/archive
      tailrace pipeline archive orders payments --to s3://bucket/archive --once
      tailrace pipeline archive orders --every 1h --master spark://host:7077
    """
    if once and every_ms is not None:
        raise click.UsageError("--once stops at the current end: leave out --every.")
    if len(set(topics)) < len(topics):
        raise click.UsageError("A topic is given twice: give each topic once.")
    from tailrace.pipeline.spark.session import check_installation

    check_installation()
    from tailrace.pipeline.archiving.archiver import DEFAULT_EVERY_MS
    from tailrace.pipeline.archiving.setup import open_archives

    unopened: dict[str, TailraceError] = {}
    archivers = open_archives(bootstrap, topics, uri, _say, _warn, unopened.__setitem__)
    for topic, problem in unopened.items():
        about = "" if topic in str(problem) else f"{topic}: "
        _warn(f"{about}{problem}; {'continuing with the others' if once else 'retrying until it works'}")

    def reopen(topic: str) -> TopicArchiver:
        (archiver,) = open_archives(bootstrap, [topic], uri, _say, _warn)
        return archiver

    interval_ms = None if once else DEFAULT_EVERY_MS if every_ms is None else every_ms
    _run(archivers, unopened, reopen, bootstrap, interval_ms, master, pairs_without_repeats(conf, "--conf"), as_json)


def _run(
    archivers: list[TopicArchiver],
    unopened: dict[str, TailraceError],
    reopen: Callable[[str], TopicArchiver],
    bootstrap: str,
    every_ms: int | None,
    master: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    from tailrace.pipeline.archiving.archiver import archive_topics, group_of
    from tailrace.pipeline.jobs.run import Stop
    from tailrace.pipeline.spark.session import spark_session, stop_spark

    def report(done: Round) -> None:
        if as_json:
            print_json(done.as_json())
        else:
            click.echo(done.as_text())

    for archiver in archivers:
        _say(f"topic {archiver.topic} to {archiver.status.uri}; group {group_of(archiver.topic)}")
    names = ", ".join(archiver.topic for archiver in archivers)
    stop = Stop()
    with stop.on_signals():
        spark = spark_session(f"tailrace pipeline: archive {names}", master=master, conf=conf)
        try:
            # Again, because Spark has installed its own handler of Ctrl-C.
            with stop.on_signals():
                outcome = archive_topics(
                    spark,
                    bootstrap,
                    archivers,
                    every_ms=every_ms,
                    report=report,
                    warn=_warn,
                    stop=stop,
                    unopened=unopened,
                    reopen=reopen,
                )
        finally:
            stop_spark(spark)
            for archiver in archivers:
                archiver.location.close()
    how = "done" if stop.signal is None else "stopped; restart it to continue from here"
    rounds, rows, files = (
        count_of(number, noun)
        for number, noun in ((outcome.rounds, "round"), (outcome.rows, "row"), (outcome.files, "file"))
    )
    aside = f", {outcome.quarantined_batches} quarantined batches" if outcome.quarantined_batches else ""
    _say(f"{rounds}, {rows}, {files}{aside}: {how}")
    for topic, problem in outcome.failures.items():
        _warn(f"{topic} is not fully archived: {problem}")
    if stop.signal is not None and stop.signal.name == "SIGINT":
        raise click.Abort


def _say(line: str) -> None:
    click.echo(line, err=True)


def _warn(text: str) -> None:
    _say(f"warning: {text}")
