"""NATS JetStream with file storage."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.clients.server import Handle
from bench.harness.failures import ServerFailedError
from bench.harness.paths import BUILD, CACHE
from bench.harness.processes import ServerProcess
from bench.systems.system import System, command_output


def executable() -> str:
    """Return the server that setup built, or the one on the path."""
    built = CACHE / "bin/nats-server"
    found = str(built) if built.exists() else shutil.which("nats-server", path=None) or ""
    if not found:
        raise ServerFailedError("no nats-server: run scripts/setup-bench")
    return found


class Nats(System):
    """nats-server with JetStream, with streams in files."""

    name = "nats"
    durability = "JetStream file storage, default sync_interval (2 min): acknowledged when written to the page cache"
    client = "natsbench (NATS C client): asynchronous publishes, 4,096 in flight; ordered push consumer"
    count_share = 0.25

    def version(self) -> str:
        return command_output([executable(), "--version"]).split()[-1].removeprefix("v")

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        command = [executable(), "--addr", "127.0.0.1", "--port", str(port), "--jetstream"]
        return ServerProcess([*command, "--store_dir", str(data_dir / "data")], data_dir / "output")

    def client_command(self, kind: str, address: Handle, name: str, count: int, size: int) -> list[str]:
        target = ["--host", address.host, "--port", str(address.port), "--name", name]
        return [str(BUILD / "natsbench"), kind, *target, "--count", str(count), "--size", str(size)]
