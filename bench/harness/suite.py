"""The parts of a benchmark: a suite has groups of workloads, and a stage on which they run.

A suite is data; `run` carries it out. A stage starts, describes and stops what is measured; a workload prepares and
measures once. Neither knows rounds, their order or results.
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
#: The target: what the workloads of a block run on.
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
    """Starts and stops what a run and its blocks need."""

    @contextmanager
    def shared(self, scratch: Path, say: Say) -> Iterator[None]:
        """Start what all blocks use, and stop it when the run ends."""
        yield

    @abstractmethod
    def block(self, block: Block[T], directory: Path, say: Say) -> AbstractContextManager[T]:
        """Start what one block runs on, with its data in the directory, and stop it when the block ends."""

    def warm_up(self, target: T) -> Iterable[Figures]:
        """Warm up what was started; the figures of that are kept too."""
        return ()

    @abstractmethod
    def check_alive(self, target: T) -> None:
        """Raise ServerFailedError if what was started has ended."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """The versions of everything that takes part."""

    def missing(self, systems: Sequence[str]) -> dict[str, str]:
        """The systems that cannot take part, each with the reason."""
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
    #: The system that is compared with each of the others; None compares nothing.
    ours: str | None = OURS
    #: What a sample calls its system.
    subject: str = "system"
    #: The figures by which samples are compared that have no workload of their name.
    judged_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit_minutes: float | None = None
    #: Whether the machine's physical limits are measured in each round.
    measures_limits: bool = False
    #: Whether the run uses free memory once first, so that the first system does not pay for it.
    touches_memory: bool = False
    extras: Callable[[Sequence[Sample]], dict[str, Any]] = _nothing_more
    summary: Callable[[Mapping[str, Any]], str] = report.summary
    #: What the chart beside the results is called; there is none without.
    chart_title: Callable[[Mapping[str, Any]], str] | None = None
    #: The part of a page that shows this suite.
    page: PagePart | None = None
