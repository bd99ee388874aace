"""What a workload on a single server runs against: the server, its address, and the scale of the load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.clients.server import Handle
from bench.harness.failures import ClientFailedError
from bench.harness.suite import Say
from bench.systems.system import System


@dataclass(frozen=True, slots=True)
class Target:
    """A running system; `scale` multiplies every count."""

    system: System
    handle: Handle
    data_dir: Path
    scale: float
    say: Say
    #: The number of messages in each topic.
    produced: dict[str, int] = field(default_factory=dict)

    def count(self, messages: int) -> int:
        """Scale a count of the full benchmark; never so low that nothing is measured."""
        return max(int(messages * self.scale * self.system.count_share), 1000)

    def held(self, topic: str) -> int:
        """Return how many messages an earlier workload has produced to a topic."""
        if topic not in self.produced:
            raise ClientFailedError(f"nothing was produced to {topic}")
        return self.produced[topic]


@contextmanager
def started(system: System, data_dir: Path, scale: float, say: Say) -> Iterator[Target]:
    """Start a system on an empty directory, and stop it when the block ends; does not wait until it serves."""
    try:
        yield Target(system, system.start(data_dir), data_dir, scale, say)
    finally:
        system.stop()
