"""The topics of one archiving run: the problem of each, and when to retry it.

Invariant: a failing topic takes part in no round until its pause is over, and pauses grow. This module must not know
rounds, nor how anything is archived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.archive.errors import ArchiveError
from tailrace.client.archive import CommitUnknownError
from tailrace.client.errors import UnreachableError
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace.pipeline.archiving.commit import ArchiveChangedError, TopicArchiver
from tailrace.pipeline.archiving.task import may_pass
from tailrace.pipeline.failures import SourceError, UnknownTopicError

#: How often a round may fail in a row without archiving anything, for reasons within Spark.
ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
#: Problems that only a user can solve are checked less often.
_LONGEST_LASTING_PAUSE_SECONDS = 300.0


class ArchivingError(TailraceError):
    """One or several topics could not be archived."""


class PassingError(TailraceError):
    """A topic could not be archived this time, for a reason that may pass by itself."""

    def __init__(self, reason: str, *, is_outage: bool) -> None:
        super().__init__(reason)
        #: Whether brokers or the archive are unreachable, which may last indefinitely.
        self.is_outage = is_outage


def _is_outage(error: TailraceError) -> bool:
    """True if the problem is worth waiting for, however long it lasts."""
    if isinstance(error, PassingError):
        return error.is_outage
    if isinstance(error, ArchiveError):
        return may_pass(error)
    if isinstance(error, ArchiveChangedError):
        return error.is_elsewhere
    if isinstance(error, SourceError):
        return not isinstance(error, UnknownTopicError)
    return isinstance(error, UnreachableError | CommitUnknownError)


class ArchivedTopic:
    """One topic of a run."""

    def __init__(self, name: str, archiver: TopicArchiver | None, problem: TailraceError | None = None) -> None:
        self.name = name
        #: None while the archive could not be opened.
        self.archiver = archiver
        #: Why the last attempt failed; None if it did not.
        self.problem: TailraceError | None = None
        #: Whether only a user can solve the problem.
        self.is_lasting = False
        #: Whether a round with this topic and others failed as a whole, so that the next one has only this topic.
        self.is_suspect = False
        #: When all new records are archived next, and the time before which nothing is tried.
        self.due = 0.0
        self.retry_at = 0.0
        #: Where partitions ended at the start of a run that goes no further.
        self.ends: dict[TopicPartition, int] | None = None
        self._failures = 0
        self._said = ""
        if problem is not None:
            self.failed(problem, 0.0)

    def failed(self, error: TailraceError, now: float) -> None:
        """Note a failure, and wait longer before each further attempt."""
        self._failures += 1
        self.problem = error
        is_passing = isinstance(error, PassingError) and self._failures < ATTEMPTS
        self.is_lasting = not is_passing and not _is_outage(error)
        longest = _LONGEST_LASTING_PAUSE_SECONDS if self.is_lasting else _LONGEST_PAUSE_SECONDS
        self.retry_at = now + min(longest, _FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
        if isinstance(error, ArchiveChangedError) and error.is_elsewhere:
            self.archiver = None

    def trying(self) -> None:
        """Note that a round has the topic again."""
        self.problem = None
        self.is_lasting = False

    def progressed(self) -> None:
        """Note that records were archived, so earlier failures no longer count."""
        self._failures = 0

    def succeeded(self) -> None:
        """Note that there is no problem any more."""
        self._failures = 0
        self.problem = None
        self.is_lasting = self.is_suspect = False
        self._said = ""

    @property
    def gives_up(self) -> bool:
        """True if a run that waits for nothing must skip it."""
        return self.problem is not None and (self.is_lasting or _is_outage(self.problem))

    def news(self) -> str | None:
        """Return the problem, unless there is none or it was returned before."""
        if self.problem is None or str(self.problem) == self._said:
            return None
        self._said = str(self.problem)
        return self._said


def failure_of(topics: Sequence[ArchivedTopic]) -> TailraceError | None:
    """Return the error for a run in which topics failed; None if none did."""
    failed = {topic.name: topic.problem for topic in topics if topic.problem is not None}
    if not failed:
        return None
    problems = list(failed.values())
    if len(failed) == len(topics) and len({str(problem) for problem in problems}) == 1:
        first = problems[0]
        return ArchivingError(str(first)) if isinstance(first, PassingError) else first
    return ArchivingError(f"{len(failed)} of {len(topics)} topics could not be archived: {_reasons(failed)}")


def _reasons(failed: Mapping[str, TailraceError]) -> str:
    return "; ".join(
        str(problem) if name in str(problem) else f"{name}: {problem}" for name, problem in sorted(failed.items())
    )
