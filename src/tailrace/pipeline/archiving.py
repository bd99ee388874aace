"""Archiving topics with Spark: round after round, what is new becomes files, and each topic's files one commit.

Owns the rounds: when one is due, what it reads, what is done when it fails. Nothing is remembered between runs, as the
archive itself says how far it goes; a driver that is killed leaves at worst files that nobody reads. It must not know
how lines are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tailrace.archive.errors import ArchiveError
from tailrace.client.archive import CommitUnknownError
from tailrace.client.errors import UnreachableError
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace.pipeline.archiving_commit import TopicArchiver
from tailrace.pipeline.archiving_plan import FILE_BYTES, Backlog, Piece, bytes_per_offset, plan_round, without_holes
from tailrace.pipeline.archiving_round import Round
from tailrace.pipeline.archiving_task import Failed, FileTask, Written, may_pass, write_file
from tailrace.pipeline.batches import Pace
from tailrace.pipeline.brokers import Brokers
from tailrace.pipeline.client_settings import parse_client_settings
from tailrace.pipeline.errors import PipelineError, in_users_words
from tailrace.pipeline.failures import SourceError, UnknownTopicError
from tailrace.pipeline.offsets import EARLIEST, LATEST
from tailrace.pipeline.progress import GROUP_PREFIX, GroupProgress
from tailrace.pipeline.run import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Of what was new this long ago, all is archived, unless there is a file's worth of it sooner.
DEFAULT_EVERY_MS = 10 * 60 * 1000
#: How often a round may fail in a row, with nothing archived in between, for reasons that lie in Spark.
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
#: How often it is looked whether there is a file's worth of records.
_LOOK_SECONDS = 5.0
#: How long brokers are asked where partitions end.
_API_TIMEOUT_MS = 30_000
#: How long a signal may go unseen.
_SLICE = 0.2

_Ends: TypeAlias = dict[TopicPartition, int]


class ArchivingError(TailraceError):
    """A round could not be archived."""


class _PassingError(Exception):
    """A round failed by what may pass by itself; the cause, where there is one, is what to end with if it does not."""

    def __init__(self, reason: str, *, is_outage: bool) -> None:
        super().__init__(reason)
        #: Whether brokers or the archive do not answer, which may take as long as it takes.
        self.is_outage = is_outage


@dataclass(frozen=True, slots=True)
class ArchivingOutcome:
    """What a run has archived when it ends without a failure."""

    rounds: int
    rows: int
    files: int


def group_of(topic: str) -> str:
    """The group that shows how far a topic is archived."""
    return f"{GROUP_PREFIX}archive-{topic}"


def archive_topics(
    spark: SparkSession,
    bootstrap: str,
    archivers: Sequence[TopicArchiver],
    *,
    every_ms: int | None,
    report: Callable[[Round], None],
    warn: Callable[[str], None],
    stop: Stop,
    file_bytes: int = FILE_BYTES,
) -> ArchivingOutcome:
    """Archive what is there now, and where a span of time is given go on with what comes until asked to stop."""
    run = _Run(spark, bootstrap, archivers, report, warn, stop, file_bytes)
    try:
        if every_ms is None:
            run.to_the_end()
        else:
            run.follow(every_ms / 1000)
    finally:
        run.close()
    return ArchivingOutcome(run.rounds, run.rows, run.files)


class _Run:
    """One run over all its rounds."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        archivers: Sequence[TopicArchiver],
        report: Callable[[Round], None],
        warn: Callable[[str], None],
        stop: Stop,
        file_bytes: int,
    ) -> None:
        self._spark = spark
        self._file_bytes = file_bytes
        self._archivers = {archiver.topic: archiver for archiver in archivers}
        self._report = report
        self._warn = warn
        self._stop = stop
        self._client = parse_client_settings(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "tailrace-archive",
                "isolation.level": "read_committed",
                # Nobody sees a signal meanwhile.
                "default.api.timeout.ms": str(_API_TIMEOUT_MS),
            }
        )
        self._brokers = Brokers(self._client)
        self._progress = {topic: GroupProgress(bootstrap, group_of(topic), warn) for topic in self._archivers}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="archive-round")
        self._pace = Pace()
        self._last_warning = ""
        self.rounds = self.rows = self.files = 0

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for progress in self._progress.values():
            progress.close()
        self._brokers.close()

    # --- when

    def to_the_end(self) -> None:
        """Archive up to where partitions end now."""
        ends: _Ends | None = None
        failures = 0
        while self._stop.signal is None:
            done = self.rounds
            try:
                self._refresh()
                if ends is None:
                    ends = self._ends()
                backlogs = self._backlogs(ends)
                if not backlogs:
                    return
                self._round(backlogs)
                failures = 0
            except _PassingError as error:
                failures = 1 if self.rounds > done else failures + 1
                if error.is_outage or failures == _ATTEMPTS:
                    raise ArchivingError(str(error)) from error
                self._warn(f"{error}; trying again")
                self._sleep(_FIRST_PAUSE_SECONDS)

    def follow(self, every_seconds: float) -> None:
        """Archive what is there, then what comes: all of it so often, and a partition that fills a file at once."""
        due = time.monotonic()
        failures = 0
        while self._stop.signal is None:
            done = self.rounds
            try:
                self._refresh()
                backlogs = self._backlogs(self._ends())
                is_due = time.monotonic() >= due
                wanted = [backlog for backlog in backlogs if is_due or backlog.fills_file(self._file_bytes)]
                is_all = self._round(wanted) if wanted else True
                if is_due and is_all:
                    due = time.monotonic() + every_seconds
                failures, self._last_warning = 0, ""
                if is_all:
                    self._sleep(min(_LOOK_SECONDS, max(0.0, due - time.monotonic())))
            except (_PassingError, UnreachableError, CommitUnknownError, SourceError, ArchiveError) as error:
                failures = 1 if self.rounds > done else failures + 1
                self._bear(error, failures)

    def _bear(self, error: Exception, failures: int) -> None:
        """Wait before the next attempt, longer each time; raise what will not pass."""
        if isinstance(error, UnknownTopicError) or (isinstance(error, ArchiveError) and not may_pass(error)):
            raise error
        if isinstance(error, _PassingError) and not error.is_outage and failures == _ATTEMPTS:
            raise ArchivingError(str(error)) from error
        if str(error) != self._last_warning:
            self._last_warning = str(error)
            self._warn(f"{error}; trying again until it works")
        self._sleep(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (failures - 1)))

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._stop.signal is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(_SLICE, left))

    # --- what

    def _refresh(self) -> None:
        for archiver in self._archivers.values():
            archiver.refresh()

    def _partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic, archiver in self._archivers.items()
            for number in range(archiver.status.partition_count)
        ]

    def _ends(self) -> _Ends:
        """Up to where partitions can be archived: what is not committed, or of an open transaction, has to wait."""
        return self._brokers.offsets_at(dict.fromkeys(self._partitions(), LATEST))

    def _backlogs(self, ends: _Ends) -> list[Backlog]:
        starts = self._brokers.offsets_at(dict.fromkeys(ends, EARLIEST))
        found = []
        for name, end in ends.items():
            archiver = self._archivers[name.topic]
            archived = archiver.archived_end(name.partition)
            first = starts[name] if archived is None else archived
            # Records that were deleted before they were archived; the next file's range covers theirs.
            start = max(first, starts[name], archiver.status.deleted_below.get(name.partition, 0))
            if start < end:
                files = archiver.snapshot.partition(name.partition).files
                size = bytes_per_offset(files, self._file_bytes)
                found.append(Backlog(name.topic, name.partition, first, start, end, size))
        return found

    # --- how

    def _round(self, backlogs: Sequence[Backlog]) -> bool:
        """Write and commit one round; whether that was all there is to do."""
        begun = time.monotonic()
        pieces = plan_round(backlogs, self._spark.sparkContext.defaultParallelism, self._file_bytes)
        written, failures = self._write(pieces)
        committed: list[Written] = []
        versions: dict[str, int] = {}
        for topic, archiver in self._archivers.items():
            files = [each for each in written if each.topic == topic]
            if files and (taken := self._commit(archiver, files)):
                committed += taken
                versions[topic] = archiver.status.version
        if committed:
            self._done(committed, versions, begun)
        self._check(failures)
        reached = {(backlog.topic, backlog.partition): backlog.end for backlog in backlogs}
        for each in committed:
            if reached.get((each.topic, each.file.partition)) == each.file.next_offset:
                del reached[each.topic, each.file.partition]
        return not reached

    def _write(self, pieces: Sequence[Piece]) -> tuple[list[Written], list[Failed]]:
        """Have Spark write the pieces, in a thread: this one has to see signals."""
        tasks = [
            FileTask(
                self._client,
                self._archivers[piece.topic].status.uri,
                self._archivers[piece.topic].status.topic_id,
                piece,
            )
            for piece in pieces
        ]
        context = self._spark.sparkContext
        running = self._pool.submit(lambda: context.parallelize(tasks, len(tasks)).map(write_file).collect())
        is_cancelled = False
        while not wait_for([running], _SLICE).done:
            if self._stop.is_at_once and not is_cancelled:
                is_cancelled = True
                context.cancelAllJobs()
        try:
            with in_users_words():
                results = running.result()
        except PipelineError as error:
            if is_cancelled:
                return [], []
            # A worker that was killed, or a machine of the cluster's that is gone.
            raise _PassingError(str(error), is_outage=False) from error
        return (
            [each for each in results if isinstance(each, Written)],
            [each for each in results if isinstance(each, Failed)],
        )

    def _commit(self, archiver: TopicArchiver, written: Sequence[Written]) -> list[Written]:
        ends = {number: files.end for number, files in archiver.snapshot.partitions.items()}
        fitting, stray = without_holes([each.file for each in written], ends)
        archiver.discard(stray)
        if not fitting:
            return []
        before = archiver.status.version
        if not archiver.commit(fitting):
            self._warn(
                f"somebody else archives {archiver.topic} too and was faster (version {before + 1}); what was written "
                "here is deleted again, going on from there"
            )
            return []
        names = {file.name for file in fitting}
        return [each for each in written if each.file.name in names]

    def _done(self, committed: Sequence[Written], versions: dict[str, int], begun: float) -> None:
        now = time.monotonic()
        rows = sum(each.file.rows for each in committed)
        for topic in versions:
            coverage = self._archivers[topic].snapshot.coverage
            self._progress[topic].processed({(topic, number): end for number, (_, end) in coverage.items()})
        lag = self._lag()
        duration_ms = round((now - begun) * 1000)
        self.rounds += 1
        self.rows += rows
        self.files += len(committed)
        self._report(
            Round(
                self.rounds,
                rows,
                sum(each.record_bytes for each in committed),
                len(committed),
                sum(each.file.bytes for each in committed),
                duration_ms,
                lag,
                None if lag is None else self._pace.eta_seconds(now, lag, rows * 1000 / max(1, duration_ms)),
                versions,
            )
        )

    def _lag(self) -> int | None:
        try:
            return sum(backlog.end - backlog.start for backlog in self._backlogs(self._ends()))
        except SourceError as error:
            # What was committed is committed; the next round will say more if this lasts.
            self._warn(f"the lag is not known: {error}")
            return None

    def _check(self, failures: Sequence[Failed]) -> None:
        lasting = [failed for failed in failures if not failed.is_passing]
        if lasting:
            raise ArchivingError(f"{lasting[0].topic} cannot be archived: {lasting[0].reason}")
        if failures:
            raise _PassingError(
                f"{failures[0].topic} cannot be archived: {failures[0].reason}", is_outage=failures[0].is_of_archive
            )
