"""The topics of one run of archiving, each for itself: what is wrong with one, and when it is tried again.

Keeps the invariant that matters to the others: a topic that fails takes part in no round until its pause is over, and
pauses grow. It must not know rounds, nor how anything is archived.
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

#: How often a round may fail in a row, with nothing archived in between, for reasons that lie in Spark.
ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
#: What only somebody's action ends is looked at less often.
_LONGEST_LASTING_PAUSE_SECONDS = 300.0


class ArchivingError(TailraceError):
    """A topic, or several, could not be archived."""


class PassingError(TailraceError):
    """A topic could not be archived this time, for a reason that may pass by itself."""

    def __init__(self, reason: str, *, is_outage: bool) -> None:
        super().__init__(reason)
        #: Whether brokers or the archive do not answer, which may take as long as it takes.
        self.is_outage = is_outage


def _is_outage(error: TailraceError) -> bool:
    """Whether it is worth waiting, for as long as it takes."""
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
        #: Why the last attempt failed; None where it did not.
        self.problem: TailraceError | None = None
        #: Whether nothing but somebody's action will help.
        self.is_lasting = False
        #: Whether a round with this topic and others failed as a whole, so that the next one has this topic alone.
        self.is_suspect = False
        #: When all that is new is archived next, and before when nothing is tried.
        self.due = 0.0
        self.retry_at = 0.0
        #: Where partitions ended when a run began that goes no further.
        self.ends: dict[TopicPartition, int] | None = None
        self._failures = 0
        self._said = ""
        if problem is not None:
            self.failed(problem, 0.0)

    def failed(self, error: TailraceError, now: float) -> None:
        """Wait before the next attempt, longer each time."""
        self._failures += 1
        self.problem = error
        is_passing = isinstance(error, PassingError) and self._failures < ATTEMPTS
        self.is_lasting = not is_passing and not _is_outage(error)
        longest = _LONGEST_LASTING_PAUSE_SECONDS if self.is_lasting else _LONGEST_PAUSE_SECONDS
        self.retry_at = now + min(longest, _FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
        if isinstance(error, ArchiveChangedError) and error.is_elsewhere:
            self.archiver = None

    def trying(self) -> None:
        """It is part of a round again."""
        self.problem = None
        self.is_lasting = False

    def progressed(self) -> None:
        """Something was archived, so what failed before counts no more."""
        self._failures = 0

    def succeeded(self) -> None:
        """Nothing is wrong with it."""
        self._failures = 0
        self.problem = None
        self.is_lasting = self.is_suspect = False
        self._said = ""

    @property
    def gives_up(self) -> bool:
        """Whether a run that does not wait for anything has to leave it."""
        return self.problem is not None and (self.is_lasting or _is_outage(self.problem))

    def news(self) -> str | None:
        """What is wrong, unless nothing is or that was asked for already."""
        if self.problem is None or str(self.problem) == self._said:
            return None
        self._said = str(self.problem)
        return self._said


def failure_of(topics: Sequence[ArchivedTopic]) -> TailraceError | None:
    """What a run ends with in which topics failed; None where none did."""
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
