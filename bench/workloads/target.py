"""What a workload of a single server runs against: the server, where it is reached, how large the load is for it."""

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
    #: How many messages each topic holds.
    produced: dict[str, int] = field(default_factory=dict)

    def count(self, messages: int) -> int:
        """A count of the full benchmark as it is here; never so small that nothing is measured."""
        return max(int(messages * self.scale * self.system.count_share), 1000)

    def held(self, topic: str) -> int:
        """How many messages a topic holds that an earlier workload has produced."""
        if topic not in self.produced:
            raise ClientFailedError(f"nothing was produced to {topic}")
        return self.produced[topic]


@contextmanager
def started(system: System, data_dir: Path, scale: float, say: Say) -> Iterator[Target]:
    """Start a system on an empty directory, and stop it when the block ends; whether it serves is not waited for."""
    try:
        yield Target(system, system.start(data_dir), data_dir, scale, say)
    finally:
        system.stop()
