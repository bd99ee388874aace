"""The order of a benchmark run, and how long the rest of it will take.

Pure: systems take turns on every group of workloads and swap who goes first from round to round, so that a slow
minute of the machine does not fall on one of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.workloads.single import Workload

#: Starting, warming up and stopping a server, before it is known better.
START_SECONDS = 25.0
KAFKA_PROTOCOL = ("tailrace", "kafka")
OTHER_PEERS = ("redis", "nats", "rabbitmq-quorum", "rabbitmq-stream")


@dataclass(frozen=True, slots=True)
class Block:
    """One system, started once, and what is run on it before it is stopped."""

    round: int
    system: str
    group: str
    workloads: tuple[Workload, ...]


def make_plan(
    groups: Mapping[str, tuple[Workload, ...]],
    peer_group: tuple[Workload, ...],
    rounds: int,
    peer_rounds: int,
    systems: Sequence[str],
) -> list[Block]:
    """All blocks in the order in which they run."""
    plan: list[Block] = []
    for number in range(1, rounds + 1):
        for group, workloads in groups.items():
            order = [name for name in KAFKA_PROTOCOL if name in systems]
            if number % 2 == 0:
                order.reverse()
            plan += [Block(number, system, group, workloads) for system in order]
        if number <= peer_rounds:
            plan += [Block(number, system, "peers", peer_group) for system in OTHER_PEERS if system in systems]
    return plan


@dataclass
class Estimate:
    """What is left, in seconds: by what the same step took before, else by a guess."""

    known: dict[tuple[str, str], float] = field(default_factory=dict)

    def note(self, system: str, step: str, seconds: float) -> None:
        """Remember how long a step took."""
        self.known[system, step] = seconds

    def of_block(self, block: Block) -> float:
        """The time of a whole block."""
        return self.known.get((block.system, "start"), START_SECONDS) + self.of_steps(block.system, block.workloads)

    def of_steps(self, system: str, workloads: Sequence[Workload]) -> float:
        """The time of some workloads on a system that runs."""
        return sum(self.known.get((system, item.name), item.expected_seconds) for item in workloads)
