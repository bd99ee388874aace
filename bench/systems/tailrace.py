"""tailrace itself, as `tailrace serve` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.harness.paths import ROOT
from bench.harness.processes import ServerProcess
from bench.systems.system import System, command_output

EXECUTABLE = ROOT / ".venv/bin/tailrace"


class Tailrace(System):
    """`tailrace serve` with the data directory and the port, and otherwise only the given settings."""

    name = "tailrace"
    durability = (
        "default settings, one replica: acknowledged when written to the page cache; a sync to disk starts in the "
        "background after 16 MiB or 1 s"
    )
    client = "rdbench (librdkafka) and rawbench (raw sockets)"
    speaks_kafka = True

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = settings or {}

    def version(self) -> str:
        return command_output([str(EXECUTABLE), "--version"]).split()[-1]

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        command = [str(EXECUTABLE), "serve", "--data-dir", str(data_dir / "data"), "--port", str(port)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return ServerProcess(command, data_dir / "output")
