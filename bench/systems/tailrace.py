"""tailrace itself, as `tailrace serve` runs it with default settings."""

from __future__ import annotations

from pathlib import Path

from bench.harness.paths import ROOT
from bench.harness.processes import ServerProcess
from bench.systems.system import System, command_output

EXECUTABLE = ROOT / ".venv/bin/tailrace"


class Tailrace(System):
    """`tailrace serve` with nothing but the data directory and the port."""

    name = "tailrace"
    durability = (
        "default settings, one replica: acknowledged when written to the page cache; a sync to disk starts in the "
        "background after 16 MiB or 1 s"
    )
    client = "rdbench (librdkafka) and rawbench (raw sockets)"
    speaks_kafka = True

    def version(self) -> str:
        return command_output([str(EXECUTABLE), "--version"]).split()[-1]

    def command(self, data_dir: Path, port: int) -> list[str]:
        """What starts it."""
        return [str(EXECUTABLE), "serve", "--data-dir", str(data_dir / "data"), "--port", str(port)]

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        return ServerProcess(self.command(data_dir, port), data_dir / "output")
