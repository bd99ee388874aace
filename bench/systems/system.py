"""What every measured system offers: start, stop, resource usage, its version and its durability setting.

Owns one server process on a free loopback port. Must not know any workload.
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
    """One server that can be started on an empty data directory and stopped again."""

    name: ClassVar[str]
    #: How safe an acknowledged record is with these settings.
    durability: ClassVar[str]
    #: The program that sends the load.
    client: ClassVar[str]
    #: The share of a Kafka system's messages that it gets: the slower, the fewer, for about the same time.
    count_share: ClassVar[float] = 1.0
    speaks_kafka: ClassVar[bool] = False

    def __init__(self) -> None:
        self._server: ServerProcess | None = None
        self._port = 0

    @abstractmethod
    def version(self) -> str:
        """Return the version of the server that `start` would run."""

    @abstractmethod
    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        """Start the process without waiting for it."""

    def start(self, data_dir: Path) -> Handle:
        """Start the server with its data below `data_dir`; `wait_ready` waits until it serves."""
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
        """Stop the server if it runs."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def pids(self) -> list[int]:
        """Return the pids of the server and its descendants."""
        return self.server.tree()

    def cpu_seconds(self) -> float:
        """Return the user and system CPU seconds of the server and its descendants."""
        self.server.check_alive()
        return processes.cpu_seconds(self.pids())

    def rss_mb(self) -> float:
        """Return the resident memory of the server and its descendants, in MB."""
        return processes.rss_mb(self.pids())

    def pss_mb(self) -> float:
        """Return the same, with shared pages counted once."""
        return processes.pss_mb(self.pids())

    def client_command(self, kind: str, address: Handle, name: str, count: int, size: int) -> list[str]:
        """Return the command that produces or consumes `count` messages; only for systems that do not speak Kafka."""
        raise NotImplementedError(f"{self.name} is measured with the Kafka clients")


def command_output(command: list[str]) -> str:
    """Return the first line of a command's output."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return (done.stdout + done.stderr).strip().splitlines()[0]
