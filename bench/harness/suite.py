"""What a benchmark is made of: a suite of groups of workloads, and the stage on which they run.

A suite is data; `run` carries it out. The stage knows how to start, describe and stop what is measured; a workload how
to prepare, run and measure once. Neither knows of rounds, of the order of things or of results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from bench.harness import report
from bench.harness.page import PagePart
from bench.harness.ratios import OURS, Sample

Metrics = dict[str, float]
Say = Callable[[str], None]
#: What workloads run on, for as long as a block lasts.
T = TypeVar("T")


class Figures(NamedTuple):
    """What one measurement gave."""

    workload: str
    metrics: Metrics
    #: Where it is not the system that the block is for.
    system: str = ""


class Workload(ABC, Generic[T]):
    """Something to measure, once or several times in one go."""

    #: The figures by which systems are compared, the first is the one to show while it runs; all that have a better
    #: side where nothing is named.
    judged_by: ClassVar[tuple[str, ...]] = ()
    #: A first guess, before the first run of it on this machine is known.
    expected_seconds: ClassVar[float] = 5.0
    #: Which physical limits bound the throughput.
    bounded_by: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    def prepare(self, target: T) -> None:
        """Make what the measurement needs; none of it is measured."""

    @abstractmethod
    def run(self, target: T) -> Iterator[Figures]:
        """Measure, giving figures as soon as they are known."""


class OneSample(Workload[T]):
    """A workload that gives all of its figures at its end."""

    def run(self, target: T) -> Iterator[Figures]:
        yield Figures(self.name, self.measure(target))

    @abstractmethod
    def measure(self, target: T) -> Metrics:
        """Run it once and return every figure."""


@dataclass(frozen=True, slots=True)
class Group(Generic[T]):
    """Workloads that run one after another on each of some systems, which take turns."""

    name: str
    workloads: tuple[Workload[T], ...]
    systems: tuple[str, ...]
    #: In how many of the rounds; in all of them unless told otherwise.
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Block(Generic[T]):
    """One system, started once, and what is run on it before it is stopped."""

    round: int
    system: str
    group: str
    workloads: tuple[Workload[T], ...]


class Stage(ABC, Generic[T]):
    """Where workloads run: starts and stops what a whole run and what a single block needs."""

    @contextmanager
    def shared(self, scratch: Path, say: Say) -> Iterator[None]:
        """Keep up what all blocks use, for as long as the run lasts."""
        yield

    @abstractmethod
    def block(self, block: Block[T], directory: Path, say: Say) -> AbstractContextManager[T]:
        """Keep up what one block is run on; its data goes to the directory."""

    def warm_up(self, target: T) -> Iterable[Figures]:
        """Bring what was started to its usual speed; what is worth knowing of that is figures too."""
        return ()

    @abstractmethod
    def check_alive(self, target: T) -> None:
        """Raise ServerFailedError if what was started has ended."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """The versions of all that takes part."""

    def missing(self, systems: Sequence[str]) -> dict[str, str]:
        """Which of the systems cannot take part, and why."""
        return {}


def _nothing_more(_: Sequence[Sample]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite(Generic[T]):
    """Systems, workloads and sizes of one run, and what its results are called."""

    name: str
    stage: Stage[T]
    groups: Sequence[Group[T]]
    systems: Sequence[str]
    rounds: int
    #: Of the full number of messages, rows or partitions.
    scale: float
    output: Path
    #: Beside the rounds and the scale.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Who is compared with each of the others, if anybody is.
    ours: str | None = OURS
    #: What a sample calls its system.
    subject: str = "system"
    #: By which figures samples are compared that no workload is named after.
    judged_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit_minutes: float | None = None
    #: Whether the machine's physical limits are measured in each round.
    measures_limits: bool = False
    #: Whether memory is touched first, so that nobody pays for being the first to use it.
    touches_memory: bool = False
    extras: Callable[[Sequence[Sample]], dict[str, Any]] = _nothing_more
    summary: Callable[[Mapping[str, Any]], str] = report.summary
    #: What the chart beside the results is called; there is none without.
    chart_title: Callable[[Mapping[str, Any]], str] | None = None
    #: The part of a page that shows this suite.
    page: PagePart | None = None
