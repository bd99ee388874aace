"""A cluster of three servers on loopback, each with its own data.

Owns their start, the death and return of one server, and their end. All systems have the same session timeout. Must not
know any workload.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clients.server import Handle
from bench.harness import processes
from bench.harness.failures import ServerFailedError
from bench.harness.processes import ServerProcess
from bench.systems.view import View

BROKERS = 3
#: How long a broker may be silent before others lead its partitions: the same for both systems.
SESSION_MS = 6000
PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.02


class Cluster(ABC):
    """Three servers of one system, numbered from 1."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = [processes.free_port() for _ in range(BROKERS)]
        self.servers: dict[int, ServerProcess] = {}
        #: The store that the servers need; it counts as part of them.
        self.store: ServerProcess | None = None

    @property
    def handle(self) -> Handle:
        """All servers as one address: the host is everything before the last port, so that both together are a list."""
        return Handle(self.bootstrap.rpartition(":")[0], self.ports[-1], 0)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    # --- start and end

    def start(self) -> None:
        """Start all, and return when they know each other."""
        self.prepare()
        for number in range(1, BROKERS + 1):
            self.servers[number] = self.launch(number)
        for number, server in self.servers.items():
            processes.wait_for_port(self.ports[number - 1], server, PATIENCE_SECONDS)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.wait_until_complete()

    @abstractmethod
    def prepare(self) -> None:
        """Prepare what must exist before the first server starts."""

    @abstractmethod
    def launch(self, number: int) -> ServerProcess:
        """Start one server."""

    @abstractmethod
    def controller(self) -> int:
        """Return the number of the controller."""

    def end(self) -> None:
        """Kill everything at once: the data is no longer needed."""
        for server in self._all():
            _kill(server)
        self.servers.clear()

    def _all(self) -> list[ServerProcess]:
        return [*self.servers.values(), *([] if self.store is None else [self.store])]

    def kill(self, number: int) -> float:
        """End one server with SIGKILL; return the time of that."""
        server = self.servers.pop(number)
        killed_at = time.monotonic()
        _kill(server)
        return killed_at

    @contextmanager
    def stopping(self, number: int) -> Iterator[float]:
        """Stop one server with SIGTERM while the block runs; yields when that began."""
        thread = threading.Thread(target=self.servers.pop(number).stop)
        began = time.monotonic()
        thread.start()
        try:
            yield began
        finally:
            thread.join()

    def restart(self, number: int) -> None:
        """Start a server again, and return when all know it."""
        self.servers[number] = self.launch(number)
        processes.wait_for_port(self.ports[number - 1], self.servers[number], PATIENCE_SECONDS)
        self.wait_until_complete()

    def check_alive(self) -> None:
        """Raise if one of them has ended by itself."""
        for server in self._all():
            server.check_alive()

    # --- resource usage

    def cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(server.tree()) for server in self._all())

    def cpu_seconds_of_each(self) -> dict[int, float]:
        """Return the CPU seconds of each server, without the store."""
        return {number: processes.cpu_seconds(server.tree()) for number, server in self.servers.items()}

    def rss_mb(self) -> float:
        return sum(processes.rss_mb(server.tree()) for server in self._all())

    # --- topics

    def create(self, topics: Sequence[str], partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create topics with three replicas, and return when all of these are in sync."""
        wanted = [NewTopic(name, partitions, BROKERS, config=dict(configs or {})) for name in topics]
        for future in self.admin.create_topics(
            wanted, operation_timeout=PATIENCE_SECONDS, request_timeout=PATIENCE_SECONDS
        ).values():
            future.result(PATIENCE_SECONDS)
        self.wait_until_in_sync(topics)

    def wait_until_in_sync(self, topics: Sequence[str]) -> None:
        with self.view() as view:
            view.wait_for(
                topics,
                lambda partition: partition.leader_id >= 0 and len(partition.isr_nodes) == len(partition.replica_nodes),
                PATIENCE_SECONDS,
            )

    def wait_until_complete(self) -> None:
        """Return when every server knows all servers."""
        for number in self.servers:
            self.wait_for(lambda number=number: self._sees_all(number))  # type: ignore[misc]

    def _sees_all(self, number: int) -> bool:
        with self.view(number) as view:
            return len(view.metadata().brokers) == BROKERS

    def view(self, number: int | None = None) -> View:
        """Return the view of one server, by default of any."""
        return View(self.ports[(number or next(iter(self.servers))) - 1])

    def leader_of(self, topic: str, partition: int) -> int:
        with self.view() as view:
            return view.partitions([topic])[topic, partition].leader_id

    def wait_for(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Return when a condition holds; an unreachable server is asked again."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (KafkaException, OSError, ServerFailedError):
                self.check_alive()
            if time.monotonic() > deadline:
                raise ServerFailedError(
                    f"{self.name}: the cluster did not reach the expected state within {seconds:.0f} s"
                )
            time.sleep(_LOOK_SECONDS)


def _kill(server: ServerProcess) -> None:
    for pid in reversed(server.tree()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    server.stop()
