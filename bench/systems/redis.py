"""Redis streams with an append-only file."""

from __future__ import annotations

from pathlib import Path

from bench.clients.server import Handle
from bench.harness.paths import BUILD
from bench.harness.processes import ServerProcess
from bench.systems.system import System, command_output


class Redis(System):
    """redis-server with appendonly and an fsync every second; without snapshots, so the file is the log."""

    name = "redis"
    durability = "appendonly yes, appendfsync everysec: acknowledged when written, fsync once a second; data in memory"
    client = "redisbench (hiredis): XADD in pipelines of 1,000, XREAD of 1,000"
    count_share = 0.5

    def version(self) -> str:
        words = command_output(["redis-server", "--version"]).split()
        return next(word for word in words if word.startswith("v=")).removeprefix("v=")

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(data_dir),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "daemonize": "no",
        }
        command = ["redis-server", *(part for key, value in settings.items() for part in (f"--{key}", value))]
        return ServerProcess(command, data_dir / "output")

    def client_command(self, kind: str, address: Handle, name: str, count: int, size: int) -> list[str]:
        target = ["--host", address.host, "--port", str(address.port), "--name", name]
        return [str(BUILD / "redisbench"), kind, *target, "--count", str(count), "--size", str(size)]
