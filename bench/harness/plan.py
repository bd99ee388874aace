"""The order of a benchmark run, and an estimate of the remaining time.

Pure: systems take turns on every group of workloads, and another one goes first in each round, so that a slow minute of
the machine does not hit only one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.harness.suite import Block, Group, T, Workload

#: The time to start, warm up and stop a server, until it is known better.
START_SECONDS = 25.0

Name = TypeVar("Name")


def turns(systems: Sequence[Name], number: int) -> list[Name]:
    """Return the order for the turn with this number, from 1: each system goes first equally often."""
    shift = (number - 1) % len(systems) if systems else 0
    return [*systems[shift:], *systems[:shift]]


def make_plan(groups: Iterable[Group[T]], rounds: int, systems: Sequence[str]) -> list[Block[T]]:
    """Return all blocks in order; of each group, only the systems that take part."""
    groups = list(groups)
    return [
        Block(number, system, group.name, group.workloads)
        for number in range(1, rounds + 1)
        for group in groups
        if group.rounds is None or number <= group.rounds
        for system in turns([name for name in group.systems if name in systems], number)
    ]


@dataclass
class Estimate:
    """Estimates the remaining seconds: from what the same step took before, else from a guess."""

    known: dict[tuple[str, str], float] = field(default_factory=dict)

    def note(self, system: str, step: str, seconds: float) -> None:
        """Record how long a step took."""
        self.known[system, step] = seconds

    def of_block(self, block: Block[T]) -> float:
        """Return the time of a whole block."""
        return self.known.get((block.system, "start"), START_SECONDS) + self.of_steps(block.system, block.workloads)

    def of_steps(self, system: str, workloads: Sequence[Workload[T]]) -> float:
        """Return the time of some workloads on a running system."""
        return sum(self.known.get((system, item.name), item.expected_seconds) for item in workloads)
