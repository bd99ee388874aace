"""One simulated machine with a broker: started, stopped, killed and unplugged at any moment.

The disk and the store outlive the broker; everything else is gone when its process ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from tailrace.broker.assembly import Broker
from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.storage.log_config import LogConfig
from tailrace.stores.memory import MemoryStore
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork

PORT = 9092


class TinySegments(BrokerConfig):
    """A configuration whose logs roll after a few records, far below the minimum that Kafka allows."""

    segment_bytes = 4096
    index_interval_bytes = 256

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        return replace(
            super().topic_config(overrides),
            segment_bytes=self.segment_bytes,
            index_interval_bytes=self.index_interval_bytes,
        )


class SimNode:
    """A machine named like its broker, in a simulated network."""

    def __init__(self, loop: SimLoop, network: SimNetwork, name: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.clock = SimClock(loop)
        self.disk = SimDisk(loop.random_for(f"{name} disk"))
        self.helper = SimHelper(self.disk, loop.random_for(f"{name} helper"))
        self.store = MemoryStore()
        self.broker: Broker | None = None
        self._loop = loop
        self._network = network
        self._random: Random = loop.random_for(f"{name} broker")
        self._secrets = loop.random_for(f"{name} secrets")
        self._config = TinySegments({"listeners": f"PLAINTEXT://{name}:{PORT}", "log.dirs": "/data", **settings})

    async def start(self) -> Broker:
        """Start a broker on whatever the disk has."""
        self._network.restart(self.name)
        host = self._network.host(self.name)
        runtime = Runtime(self.clock, self.disk, host, self._random, self.helper, secrets=self._secrets)
        self.broker = Broker(self._config, runtime, self.store)
        await self.broker.start()
        return self.broker

    async def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        if self.broker is not None:
            await self.broker.stop()
            self.broker = None

    def kill(self) -> None:
        """End the process as SIGKILL does: what it wrote is in the page cache and stays."""
        self._end_process()
        self.disk.kill()
        self._network.crash(self.name, silently=False)

    def unplug(self) -> None:
        """Cut the power: unsynced data may be lost or torn."""
        self._end_process()
        self.disk.crash()
        self._network.crash(self.name)

    def _end_process(self) -> None:
        broker, self.broker = self.broker, None
        if broker is None:
            return
        owned: list[Tasks] = [broker.requests, broker.background]
        owned += [directory.tasks for directory in broker.partitions.directories]
        for tasks in owned:
            tasks.abandon()
        # Timers end with the process too; clients that this would answer have lost their connections.
        broker.coordinators.close()
