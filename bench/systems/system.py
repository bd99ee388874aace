"""What every system under test offers: start, stop, what it used, its version and its durability setting.

Owns the common life of one server process on a free loopback port. Must not know any workload.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from bench.clients.server import Handle
from bench.harness import processes
from bench.harness.failures import ServerFailedError
from bench.harness.processes import ServerProcess


class System(ABC):
    """One server that can be started on a fresh data directory and stopped again."""

    name: ClassVar[str]
    #: How far an acknowledged record is safe with the settings used here.
    durability: ClassVar[str]
    #: Which program sends the load.
    client: ClassVar[str]
    #: How many of a Kafka-protocol system's messages it is given: the slower a system, the fewer, for the same time.
    count_share: ClassVar[float] = 1.0
    speaks_kafka: ClassVar[bool] = False

    def __init__(self) -> None:
        self._server: ServerProcess | None = None
        self._port = 0

    @abstractmethod
    def version(self) -> str:
        """The version of the server that `start` would run."""

    @abstractmethod
    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        """Start the process and return without waiting for it."""

    def start(self, data_dir: Path) -> Handle:
        """Start the server with its data below `data_dir`; `wait_ready` says when it serves."""
        data_dir.mkdir(parents=True, exist_ok=True)
        self._port = processes.free_port()
        self._server = self._launch(data_dir, self._port)
        return Handle("127.0.0.1", self._port, self._server.pid)

    def wait_ready(self) -> None:
        """Return when the server accepts connections."""
        processes.wait_for_port(self._port, self.server)

    @property
    def server(self) -> ServerProcess:
        if self._server is None:
            raise ServerFailedError(f"{self.name} is not running")
        return self._server

    def stop(self) -> None:
        """End the server; nothing happens if it does not run."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def pids(self) -> list[int]:
        """The processes of the server and all that it started."""
        return self.server.tree()

    def cpu_seconds(self) -> float:
        """User and system CPU seconds of the server and all that it started."""
        self.server.check_alive()
        return processes.cpu_seconds(self.pids())

    def rss_mb(self) -> float:
        """Resident memory of the server and all that it started, in MB."""
        return processes.rss_mb(self.pids())

    def pss_mb(self) -> float:
        """The same with shared pages counted once."""
        return processes.pss_mb(self.pids())

    def client_command(self, kind: str, address: Handle, name: str, count: int, size: int) -> list[str]:
        """The command that produces or consumes `count` messages; only for systems that do not speak Kafka."""
        raise NotImplementedError(f"{self.name} is driven by the Kafka clients")


def command_output(command: list[str]) -> str:
    """The first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return (done.stdout + done.stderr).strip().splitlines()[0]
