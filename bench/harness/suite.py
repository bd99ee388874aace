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
    """The result of one measurement."""

    workload: str
    metrics: Metrics
    #: Set if it is not the block's system.
    system: str = ""


class Workload(ABC, Generic[T]):
    """Something to measure, once or several times in one go."""

    #: The figures by which systems are compared; progress lines show the first. If empty, all with a better side.
    judged_by: ClassVar[tuple[str, ...]] = ()
    #: A first guess, until its first run on this machine.
    expected_seconds: ClassVar[float] = 5.0
    #: The physical limits that bound the throughput.
    bounded_by: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    def prepare(self, target: T) -> None:
        """Prepare the measurement; nothing of this is measured."""

    @abstractmethod
    def run(self, target: T) -> Iterator[Figures]:
        """Measure, and yield figures as soon as they are known."""


class OneSample(Workload[T]):
    """A workload with all of its figures at its end."""

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
    #: The number of rounds; None for all.
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Block(Generic[T]):
    """One system, started once, and the workloads that run before it is stopped."""

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
        """Warm up what was started; yields figures that are kept too."""
        return ()

    @abstractmethod
    def check_alive(self, target: T) -> None:
        """Raise ServerFailedError if what was started has ended."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of everything that takes part."""

    def missing(self, systems: Sequence[str]) -> dict[str, str]:
        """Return the systems that cannot take part, each with the reason."""
        return {}


def _nothing_more(_: Sequence[Sample]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite(Generic[T]):
    """Systems, workloads and sizes of one run, and the description of its results."""

    name: str
    stage: Stage[T]
    groups: Sequence[Group[T]]
    systems: Sequence[str]
    rounds: int
    #: The share of the full number of messages, rows or partitions.
    scale: float
    output: Path
    #: Further settings beside rounds and scale.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The system that is compared with each of the others; None compares nothing.
    ours: str | None = OURS
    #: The name of a sample's system in the results.
    subject: str = "system"
    #: The figures for comparing samples without a workload of their name.
    judged_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit_minutes: float | None = None
    #: Whether the machine's physical limits are measured in each round.
    measures_limits: bool = False
    #: Whether the run first uses free memory once, so that the first system does not pay for it.
    touches_memory: bool = False
    extras: Callable[[Sequence[Sample]], dict[str, Any]] = _nothing_more
    summary: Callable[[Mapping[str, Any]], str] = report.summary
    #: The title of the chart beside the results; without it there is none.
    chart_title: Callable[[Mapping[str, Any]], str] | None = None
    #: The part of a page that shows this suite.
    page: PagePart | None = None
