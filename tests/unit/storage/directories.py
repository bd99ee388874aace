"""A log directory on a simulated disk, restarted at will."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.runtime.system.disk import SystemDisk
from tailrace.runtime.system.helper import SystemHelper
from tailrace.runtime.system.network import SystemNetwork
from tailrace.storage.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import PartitionLog
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.storage.logs import StandingClock, append, batch

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
IDS = {ORDERS: UUID(int=1), PAYMENTS: UUID(int=2)}
SYNC_EACH = LogConfig(index_interval_bytes=0, flush_messages=1)
LAZY = LogConfig(index_interval_bytes=0)
MARKER = f"/data/{CLEAN_SHUTDOWN}"


class World:
    """A simulated disk with one log directory on it, restarted at will."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.disk = SimDisk(Random(5), cached_probability=1.0)
        self.clock = SimClock(loop)
        network = SimNetwork(loop, Random(6)).host("broker")
        self._runtime = Runtime(self.clock, self.disk, network, Random(7), SimHelper(self.disk, Random(8)))
        self.promised: list[PartitionLog] = []

    def directory(self, *, background_ms: int = -1, background_bytes: int = 1 << 30) -> LogDirectory:
        directory = LogDirectory("/data", self._runtime, background_bytes=background_bytes, background_ms=background_ms)
        directory.on_promise = self.promised.append
        directory.open()
        return directory

    def started(self, config: LogConfig = LAZY, **options: int) -> tuple[LogDirectory, PartitionLog]:
        directory = self.directory(**options)
        log = directory.open_partition(ORDERS, IDS[ORDERS], config)
        directory.start()
        return directory, log

    def checkpoints(self) -> list[bytes | None]:
        return [self.disk.read_file(f"/data/{name}") for name in (RECOVERY_POINTS, LOG_START_OFFSETS)]

    def append(self, log: PartitionLog, batches: int = 1) -> None:
        for _ in range(batches):
            append(log, batch(timestamp=self.clock.wall_ms()))


def simulated(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time."""

    def run() -> None:
        loop = SimLoop(11)
        loop.run(test(World(loop)))

    run.__name__ = test.__name__
    return run


def on_the_real_disk(path: Path) -> LogDirectory:
    runtime = Runtime(StandingClock(), SystemDisk(), SystemNetwork(), Random(7), SystemHelper())
    directory = LogDirectory(str(path), runtime, background_bytes=1 << 30, background_ms=-1)
    directory.open()
    return directory
