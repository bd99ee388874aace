"""Archives topics with Spark in rounds: new records become files, and each topic's files become one commit.

Owns the rounds: when one is due, what it reads, and what happens if it fails. Each topic is independent: if one cannot
be archived, because it or its location is missing, the others continue and it is retried. Runs keep no state, as the
archive itself says how far it goes; a driver that is killed leaves at worst files that no reader uses. This module must
not know how lines are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tailrace.client.errors import UnreachableError
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace.pipeline.archiving.commit import TopicArchiver
from tailrace.pipeline.archiving.plan import FILE_BYTES, Backlog, Piece, bytes_per_offset, plan_round, without_holes
from tailrace.pipeline.archiving.round import Round
from tailrace.pipeline.archiving.task import Failed, FileTask, Written, write_file
from tailrace.pipeline.archiving.topics import ArchivedTopic, ArchivingError, PassingError, failure_of
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import SourceError, UnreachableBrokerError
from tailrace.pipeline.jobs.batches import Pace
from tailrace.pipeline.jobs.run import Stop
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.offsets import EARLIEST, LATEST
from tailrace.pipeline.source.progress import GROUP_PREFIX, GroupProgress
from tailrace.pipeline.spark.errors import PipelineError, in_users_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Records as old as this are archived, or younger ones if they fill a file sooner.
DEFAULT_EVERY_MS = 10 * 60 * 1000
#: How often to check whether there are enough records for a file.
_LOOK_SECONDS = 5.0
#: How long to ask brokers for the ends of partitions.
_API_TIMEOUT_MS = 30_000
#: The longest time before a signal is noticed.
_SLICE = 0.2

_Ends: TypeAlias = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ArchivingOutcome:
    """What a run has archived when it ends, and the problems of topics at that moment."""

    rounds: int
    rows: int
    files: int
    quarantined_batches: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)


def group_of(topic: str) -> str:
    """Return the consumer group that shows how far a topic is archived."""
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
    unopened: Mapping[str, TailraceError] | None = None,
    reopen: Callable[[str], TopicArchiver] | None = None,
) -> ArchivingOutcome:
    """Archive the records that exist now; with `every_ms`, continue with new ones until asked to stop.

    If an archive could not be opened, `reopen` opens it as soon as that works. Raises the remaining problems once all
    other topics are archived, or if all topics have failed permanently.
    """
    topics = [ArchivedTopic(archiver.topic, archiver) for archiver in archivers]
    topics += [ArchivedTopic(name, None, problem) for name, problem in (unopened or {}).items()]
    run = _Run(spark, bootstrap, topics, report, warn, stop, file_bytes, reopen)
    try:
        if every_ms is None:
            run.to_the_end()
        else:
            run.follow(every_ms / 1000)
    finally:
        run.close()
    failures = {topic.name: str(topic.problem) for topic in topics if topic.problem is not None}
    return ArchivingOutcome(run.rounds, run.rows, run.files, run.quarantined_batches, failures)


class _Run:
    """One run over all its rounds."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        topics: Sequence[ArchivedTopic],
        report: Callable[[Round], None],
        warn: Callable[[str], None],
        stop: Stop,
        file_bytes: int,
        reopen: Callable[[str], TopicArchiver] | None,
    ) -> None:
        self._spark = spark
        self._file_bytes = file_bytes
        self._topics = {topic.name: topic for topic in topics}
        self._report = report
        self._warn = warn
        self._stop = stop
        self._reopen = reopen
        self._reopened: list[TopicArchiver] = []
        self._client = parse_client_settings(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "tailrace-archive",
                "isolation.level": "read_committed",
                # Signals are not noticed meanwhile.
                "default.api.timeout.ms": str(_API_TIMEOUT_MS),
            }
        )
        self._brokers = Brokers(self._client)
        self._progress = {topic: GroupProgress(bootstrap, group_of(topic), warn) for topic in self._topics}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="archive-round")
        self._pace = Pace()
        self.rounds = self.rows = self.files = self.quarantined_batches = 0

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for progress in self._progress.values():
            progress.close()
        for archiver in self._reopened:
            archiver.location.close()
        self._brokers.close()

    # --- when

    def to_the_end(self) -> None:
        """Archive up to the present ends of partitions; raise what could not be archived at the end."""
        left = list(self._topics.values())
        while left and self._stop.signal is None:
            left = [topic for topic in left if not topic.gives_up]
            ready = [topic for topic in left if time.monotonic() >= topic.retry_at]
            backlogs: list[Backlog] = []
            for topic in self._looked_at(ready):
                found = self._backlogs_of(topic, is_end_fixed=True)
                if found == []:
                    left.remove(topic)
                backlogs += found or ()
            if backlogs:
                self._round(backlogs)
            given_up = [topic for topic in left if topic.gives_up]
            if len(given_up) < len(left):
                self._tell(given_up, "continuing with the others")
            self._tell([topic for topic in left if not topic.gives_up], "retrying")
            if not backlogs:
                self._sleep_until(topic.retry_at for topic in left if not topic.gives_up)
        if self._stop.signal is None and (error := failure_of(list(self._topics.values()))) is not None:
            raise error

    def follow(self, every_seconds: float) -> None:
        """Archive existing records, then new ones at each interval; a partition that fills a file goes at once."""
        while self._stop.signal is None:
            now = time.monotonic()
            wanted: list[Backlog] = []
            due: list[ArchivedTopic] = []
            for topic in self._looked_at([topic for topic in self._topics.values() if now >= topic.retry_at]):
                found = self._backlogs_of(topic, is_end_fixed=False)
                if found is None:
                    continue
                is_due = now >= topic.due
                wanted += [backlog for backlog in found if is_due or backlog.fills_file(self._file_bytes)]
                if is_due:
                    due.append(topic)
            unfinished = self._round(wanted) if wanted else set()
            for topic in due:
                if topic.problem is None and topic.name not in unfinished:
                    topic.due = time.monotonic() + every_seconds
            self._bear()
            if not unfinished:
                self._sleep_until(max(topic.due, topic.retry_at) for topic in self._topics.values())

    def _bear(self) -> None:
        """Report topics that fail; raise the problem if no topic can be archived."""
        topics = list(self._topics.values())
        if all(topic.is_lasting for topic in topics) and (error := failure_of(topics)) is not None:
            raise error
        self._tell(topics, "retrying until it works")

    def _tell(self, topics: Iterable[ArchivedTopic], what_follows: str) -> None:
        """Report new problems of topics: one line for all topics with the same problem."""
        news: dict[str, list[str]] = {}
        for topic in topics:
            if (problem := topic.news()) is not None:
                news.setdefault(problem, []).append(topic.name)
        for problem, names in news.items():
            about = "" if all(name in problem for name in names) else f"{', '.join(names)}: "
            self._warn(f"{about}{problem}; {what_follows}")

    def _sleep_until(self, times: Iterable[float]) -> None:
        """Wait for the earliest of these times, or until it is time to check partitions again."""
        now = time.monotonic()
        end = min(now + _LOOK_SECONDS, max(now, min(times, default=now)))
        while self._stop.signal is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(_SLICE, left))

    # --- what

    def _looked_at(self, topics: Iterable[ArchivedTopic]) -> Iterator[ArchivedTopic]:
        """Refresh the topics' archives; yield the topics for which that worked."""
        unreachable: TailraceError | None = None
        for topic in topics:
            try:
                if unreachable is not None:  # the whole cluster is unreachable, so other topics need not ask again
                    raise unreachable
                self._look_at(topic)
            except TailraceError as error:
                topic.failed(error, time.monotonic())
                if isinstance(error, UnreachableError | UnreachableBrokerError):
                    unreachable = error
            else:
                yield topic

    def _look_at(self, topic: ArchivedTopic) -> None:
        if topic.archiver is None:
            if self._reopen is None:
                raise ArchivingError(f"{topic.problem}: run the command again")
            topic.archiver = self._reopen(topic.name)
            self._reopened.append(topic.archiver)
            topic.due = 0.0
            topic.ends = None
        topic.archiver.refresh()

    def _backlogs_of(self, topic: ArchivedTopic, *, is_end_fixed: bool) -> list[Backlog] | None:
        """Return what is left to archive of a topic, up to its present or first known end; None if unknown."""
        try:
            if topic.ends is None or not is_end_fixed:
                topic.ends = self._ends(topic)
            found = self._backlogs(topic, topic.ends)
        except TailraceError as error:
            topic.failed(error, time.monotonic())
            return None
        if found:
            topic.trying()
        else:
            topic.succeeded()
        return found

    def _ends(self, topic: ArchivedTopic) -> _Ends:
        """Return where partitions can be archived to: uncommitted records and open transactions must wait."""
        assert topic.archiver is not None
        names = [TopicPartition(topic.name, number) for number in range(topic.archiver.status.partition_count)]
        return self._brokers.offsets_at(dict.fromkeys(names, LATEST))

    def _backlogs(self, topic: ArchivedTopic, ends: _Ends) -> list[Backlog]:
        archiver = topic.archiver
        assert archiver is not None
        starts = self._brokers.offsets_at(dict.fromkeys(ends, EARLIEST))
        found = []
        for name, end in ends.items():
            archived = archiver.archived_end(name.partition)
            first = starts[name] if archived is None else archived
            # Records were deleted before they were archived; the range of the next file covers them.
            start = max(first, starts[name], archiver.status.deleted_below.get(name.partition, 0))
            if start < end:
                files = archiver.snapshot.partition(name.partition).files
                size = bytes_per_offset(files, self._file_bytes)
                found.append(Backlog(name.topic, name.partition, first, start, end, size))
        return found

    # --- how

    def _round(self, backlogs: Sequence[Backlog]) -> set[str]:
        """Write and commit one round of the backlogs; return the topics with more left."""
        names = list(dict.fromkeys(backlog.topic for backlog in backlogs))
        together = [name for name in names if not self._topics[name].is_suspect]
        groups = [together] if together else []
        groups += [[name] for name in names if self._topics[name].is_suspect]
        unfinished: set[str] = set()
        for group in groups:
            if self._stop.signal is None or group is groups[0]:
                unfinished |= self._round_of(group, [backlog for backlog in backlogs if backlog.topic in group])
        return unfinished

    def _round_of(self, names: Sequence[str], backlogs: Sequence[Backlog]) -> set[str]:
        begun = time.monotonic()
        pieces = plan_round(backlogs, self._spark.sparkContext.defaultParallelism, self._file_bytes)
        try:
            written, failures = self._write(pieces)
        except PassingError as error:
            # With several topics it is unknown which one failed: next time, each gets its own round.
            for name in names:
                self._topics[name].is_suspect = True
                self._topics[name].failed(error, time.monotonic())
            return set()
        committed: list[Written] = []
        versions: dict[str, int] = {}
        for name in names:
            topic = self._topics[name]
            taken = self._commit(topic, [each for each in written if each.topic == name])
            if taken:
                assert topic.archiver is not None
                committed += taken
                versions[name] = topic.archiver.status.version
        if committed:
            self._done(committed, versions, begun)
        self._blame(failures)
        return self._unfinished(names, backlogs, committed)

    def _unfinished(self, names: Sequence[str], backlogs: Sequence[Backlog], committed: Sequence[Written]) -> set[str]:
        """Return the topics without problems that have more to archive."""
        reached = {(each.topic, each.file.partition, each.file.next_offset) for each in committed}
        unfinished = {
            backlog.topic for backlog in backlogs if (backlog.topic, backlog.partition, backlog.end) not in reached
        }
        unfinished -= {name for name in names if self._topics[name].retry_at > time.monotonic()}
        for name in names:
            if self._topics[name].retry_at <= time.monotonic():
                self._topics[name].succeeded()
        return unfinished

    def _write(self, pieces: Sequence[Piece]) -> tuple[list[Written], list[Failed]]:
        """Let Spark write the pieces, in a thread: this one must notice signals."""
        tasks = []
        for piece in pieces:
            archiver = self._topics[piece.topic].archiver
            assert archiver is not None
            tasks.append(FileTask(self._client, archiver.status.uri, archiver.status.lineage, piece))
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
            # A worker was killed, or a machine of the cluster is gone.
            raise PassingError(str(error), is_outage=False) from error
        return (
            [each for each in results if isinstance(each, Written)],
            [each for each in results if isinstance(each, Failed)],
        )

    def _commit(self, topic: ArchivedTopic, written: Sequence[Written]) -> list[Written]:
        """Commit what was written of a topic; return nothing if it does not fit, or cannot be committed now."""
        if not written:
            return []
        try:
            return self._committed(topic, written)
        except TailraceError as error:
            topic.failed(error, time.monotonic())
            return []

    def _committed(self, topic: ArchivedTopic, written: Sequence[Written]) -> list[Written]:
        archiver = topic.archiver
        assert archiver is not None
        ends = {number: files.end for number, files in archiver.snapshot.partitions.items()}
        fitting, stray = without_holes([each.file for each in written], ends)
        names = {file.name for file in fitting}
        taken = [each for each in written if each.file.name in names]
        left = [each.side_file for each in written if each.file.name not in names and each.side_file is not None]
        archiver.discard([*stray, *left])
        if not fitting:
            return []
        before = archiver.status.version
        aside = [each.side_file for each in taken if each.side_file is not None]
        if not archiver.commit(fitting, aside):
            self._warn(
                f"another archiver of {archiver.topic} was faster (version {before + 1}); deleted the files that "
                "were written here, continuing from its version"
            )
            return []
        topic.progressed()
        return taken

    def _done(self, committed: Sequence[Written], versions: dict[str, int], begun: float) -> None:
        now = time.monotonic()
        rows = sum(each.file.rows for each in committed)
        for name in versions:
            archiver = self._topics[name].archiver
            assert archiver is not None
            coverage = archiver.snapshot.coverage
            self._progress[name].processed({(name, number): end for number, (_, end) in coverage.items()})
        lag = self._lag()
        duration_ms = round((now - begun) * 1000)
        quarantined = self._say_quarantined(committed)
        self.rounds += 1
        self.rows += rows
        self.files += len(committed)
        self.quarantined_batches += quarantined
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
                quarantined,
            )
        )

    def _say_quarantined(self, committed: Sequence[Written]) -> int:
        """Report which batches could not be decoded, a line for each topic; return their number."""
        total = 0
        for name in dict.fromkeys(each.topic for each in committed):
            aside = [each.side_file for each in committed if each.topic == name and each.side_file is not None]
            count = sum(file.batches for file in aside)
            if not count:
                continue
            total += count
            first = aside[0]
            self._warn(
                f"{name}: quarantined {'1 batch' if count == 1 else f'{count} batches'} that cannot be decoded, the "
                f"first from offset {first.first_offset} of partition {first.partition} on ({first.reason}). To "
                f"find the producer, run: tailrace archive quarantine list {name}. To make brokers refuse such "
                f"batches, run: tailrace config set topic {name} tailrace.records.validate=true"
            )
        return total

    def _lag(self) -> int | None:
        try:
            healthy = [topic for topic in self._topics.values() if topic.archiver is not None and topic.problem is None]
            return sum(
                backlog.end - backlog.start for topic in healthy for backlog in self._backlogs(topic, self._ends(topic))
            )
        except SourceError as error:
            # What was committed is committed; the next round says more if this lasts.
            self._warn(f"cannot tell the lag: {error}")
            return None

    def _blame(self, failures: Sequence[Failed]) -> None:
        """Record for each topic why pieces of it were not written; permanent failures take precedence."""
        for failed in {each.topic: each for each in sorted(failures, key=lambda each: not each.is_passing)}.values():
            reason = f"cannot archive {failed.topic}: {failed.reason}"
            error = (
                PassingError(reason, is_outage=failed.is_of_archive) if failed.is_passing else ArchivingError(reason)
            )
            self._topics[failed.topic].failed(error, time.monotonic())
