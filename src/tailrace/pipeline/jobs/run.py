"""A job's run: starts its query, watches it batch by batch, and stops it at the end of a batch.

Invariants: offsets are committed to the group only for batches that are done, including their dead letters; the last
batch of a query is reported and committed before `run_job` returns. It must not know how lines are printed, nor what a
query consists of.
"""

from __future__ import annotations

import json
import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from confluent_kafka.admin import OffsetSpec
from pyspark.sql.streaming.listener import StreamingQueryListener

from tailrace.client.errors import UnknownTopicError
from tailrace.client.groups import Groups
from tailrace.errors import TailraceError
from tailrace.pipeline.jobs.batches import Batch, Pace, batch_of, lag_between
from tailrace.pipeline.jobs.checkpoints import check_sources
from tailrace.pipeline.jobs.dead_letters import DeadLetters
from tailrace.pipeline.jobs.declaration import Job
from tailrace.pipeline.jobs.query import RunSettings, query_of, source_schema, sources_with_letters
from tailrace.pipeline.source.progress import GroupProgress, Offsets, processed_by
from tailrace.pipeline.spark.errors import in_users_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SPARK_SHUFFLE_PARTITIONS = "200"
#: The longest time before a signal is noticed.
_SLICE = 0.2
#: How long the last events of a finished query may take; they come from a thread of Spark's.
_LAST_EVENTS_TIMEOUT = 10.0

#: Spark gives a Python worker ten seconds to start, and fails the query otherwise.
_NO_WORKER = "Python worker failed to connect back"
#: The number of consecutive such failures that end the run.
_STARTS = 5

#: Progress of a batch as Spark's JSON, or None for the end of the query.
_Event: TypeAlias = dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has done when it ends without a failure."""

    batches: int
    rows: int
    #: The signal that requested the end, None if there was nothing more to do.
    stopped_by: signal.Signals | None


class Stop:
    """Whether the run must end: after the current batch, or at once after a second request."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.is_at_once = False

    def request(self, number: int, _frame: FrameType | None = None) -> None:
        """Request the end; usable as a signal handler."""
        if self.signal is not None:
            self.is_at_once = True
        self.signal = signal.Signals(number)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Treat SIGTERM and SIGINT as such requests within the block; Spark's own handler would abort a batch."""
        before = {number: signal.signal(number, self.request) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def check_topics(job: Job[...], groups: Groups) -> None:
    """Refuse a job whose sources do not exist, before Spark starts, which takes time."""
    existing = groups.partitions()
    for source in job.sources:
        if source.name not in existing:
            raise UnknownTopicError(
                f"job '{job.name}' reads topic '{source.name}', which does not exist; list all topics with: "
                f"tailrace topic list, or create it with: tailrace topic create {source.name}"
            )


def run_job(
    spark: SparkSession,
    job: Job[...],
    settings: RunSettings,
    *,
    report: Callable[[Batch], None],
    warn: Callable[[str], None],
    stop: Stop,
) -> Outcome:
    """Run a job until it is done, asked to stop, or fails with an error in users' words."""
    if stop.signal is not None:
        return Outcome(0, 0, stop.signal)
    session = _session_of(spark, job)
    with in_users_words():
        check_sources(session, settings.checkpoint, job.name, [source.name for source in job.sources])
    writer = query_of(session, job, settings)
    events = _Events()
    session.streams.addListener(events)
    progress = GroupProgress(settings.bootstrap, settings.group, warn)
    with in_users_words():
        letters = _dead_letters(session, job, settings, warn)
    watch = _Watch(settings.bootstrap, progress, letters, report, warn)
    try:
        with in_users_words():
            _run_to_its_end(writer, events, watch, stop, warn)
    finally:
        session.streams.removeListener(events)
        progress.close()
    return Outcome(watch.batches, watch.rows, stop.signal)


def _run_to_its_end(
    writer: DataStreamWriter, events: _Events, watch: _Watch, stop: Stop, warn: Callable[[str], None]
) -> None:
    starts = 0
    while True:
        batches_before = watch.batches
        query = writer.start()
        try:
            _follow(query, events, watch, stop)
        except BaseException:
            query.stop()
            raise
        failure = query.exception()
        if failure is None:
            return
        starts = 1 if watch.batches > batches_before else starts + 1
        if _NO_WORKER not in str(failure) or starts == _STARTS or stop.signal is not None:
            raise failure
        warn("the machine is too busy for Spark to start a Python worker in time; continuing from the checkpoint")


def _dead_letters(
    session: SparkSession, job: Job[...], settings: RunSettings, warn: Callable[[str], None]
) -> DeadLetters | None:
    sources = sources_with_letters(job)
    if not sources:
        return None
    return DeadLetters(
        session,
        job,
        {number: source_schema(source) for number, source in sources.items()},
        bootstrap=settings.bootstrap,
        group=settings.group,
        checkpoint=settings.checkpoint,
        warn=warn,
    )


def _session_of(spark: SparkSession, job: Job[...]) -> SparkSession:
    """Return a session for this job alone, so that its settings affect nothing else."""
    session = spark.newSession()
    is_local = str(spark.sparkContext.master).startswith("local")
    if is_local and session.conf.get(_SHUFFLE_PARTITIONS) == _SPARK_SHUFFLE_PARTITIONS:
        # Every partition of the state is a task of each batch: Spark's default is for clusters, and slow on a laptop.
        session.conf.set(_SHUFFLE_PARTITIONS, str(spark.sparkContext.defaultParallelism))
    for name, value in job.conf.items():
        session.conf.set(name, value)
    return session


# --- monitoring


class _Events(StreamingQueryListener):
    """Passes Spark's events about a query, which arrive on another thread, to the thread that runs the job."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.queue.put(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.queue.put(None)


class _Watch:
    """Handles each finished batch: writes its dead letters, commits its offsets, looks up the lag, and reports."""

    def __init__(
        self,
        bootstrap: str,
        progress: GroupProgress,
        letters: DeadLetters | None,
        report: Callable[[Batch], None],
        warn: Callable[[str], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._letters = letters
        self._groups: Groups | None = None
        self._progress = progress
        self._report = report
        self._warn = warn
        self._pace = Pace()
        self.batches = 0
        self.rows = 0

    def done(self, progress: Mapping[str, Any]) -> None:
        if self._letters is not None:
            self._letters.batch_done(progress)
        processed = processed_by(progress)
        if processed:
            self._progress.processed(processed)
        batch = batch_of(progress, self._lag(processed), time.monotonic(), self._pace)
        self.batches += 1
        self.rows += batch.rows
        self._report(batch)

    def _lag(self, processed: Offsets) -> int | None:
        try:
            if self._groups is None:
                self._groups = Groups(self._bootstrap)
            ends = self._groups.offsets(processed, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        except TailraceError as error:
            self._warn(f"cannot tell the lag: {error}")
            return None
        return lag_between(processed, ends)


def _follow(query: StreamingQuery, events: _Events, watch: _Watch, stop: Stop) -> None:
    """Watch a query to its end; if asked to stop, stop it between two batches."""
    is_stopping = False
    ended: float | None = None
    while True:
        try:
            event = events.queue.get(timeout=_SLICE)
        except queue.Empty:
            if not query.isActive:
                ended = ended or time.monotonic()
                if time.monotonic() - ended > _LAST_EVENTS_TIMEOUT:
                    return
            has_batch_ended = not query.status["isTriggerActive"]
        else:
            if event is None:
                return
            watch.done(event)
            has_batch_ended = True
        is_between = has_batch_ended and events.queue.empty()
        if stop.signal is not None and not is_stopping and (is_between or stop.is_at_once):
            is_stopping = True
            query.stop()
