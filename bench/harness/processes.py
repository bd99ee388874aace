"""Server processes and their data in /proc: CPU time, memory, children; free ports.

Owns starting and ending: a process is ended by its own pid, first with SIGTERM, and its output is kept for the error
message. Must not know which system runs in the process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.harness.failures import ServerFailedError

STOP_TIMEOUT_SECONDS = 60
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a loopback port on which nothing listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stat_fields(text: str) -> tuple[int, float]:
    """Parse parent pid and CPU seconds (user and system, with ended children) from the text of /proc/<pid>/stat."""
    # The command's name may contain spaces and brackets, so fields are counted from the last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND


def own_cpu_seconds(text: str) -> float:
    """Parse the CPU seconds of the process alone, without ended children, from the text of /proc/<pid>/stat."""
    return sum(int(field) for field in text[text.rindex(")") + 2 :].split()[11:13]) / TICKS_PER_SECOND


def start_ticks(text: str) -> int:
    """Parse when the process started, in clock ticks since boot; with the pid, it identifies a process uniquely."""
    return int(text[text.rindex(")") + 2 :].split()[19])


def status_mb(text: str, key: str) -> float:
    """Parse a memory line of /proc/<pid>/status or smaps_rollup in MB (a million bytes); 0 if there is none."""
    for line in text.splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def process_tree(pid: int) -> list[int]:
    """Return the process and its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        text = _read(f"/proc/{entry}/stat")
        if text:
            children.setdefault(stat_fields(text)[0], []).append(int(entry))
    tree = [pid]
    for parent in tree:
        tree += children.get(parent, [])
    return tree


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds of the processes that still run."""
    return sum(stat_fields(text)[1] for pid in pids if (text := _read(f"/proc/{pid}/stat")))


def cpu_by_process(pids: Sequence[int]) -> dict[int, float]:
    """Return the CPU seconds of each process that still runs, without its children's."""
    return {pid: own_cpu_seconds(text) for pid in pids if (text := _read(f"/proc/{pid}/stat"))}


def rss_mb(pids: Sequence[int]) -> float:
    """Return the resident memory of the processes in MB."""
    return sum(status_mb(_read(f"/proc/{pid}/status"), "VmRSS") for pid in pids)


def pss_mb(pids: Sequence[int]) -> float:
    """Return the resident memory of the processes in MB; memory that they share counts once."""
    return sum(status_mb(_read(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


class ServerProcess:
    """A server in its own process, with its output in a file, and its child processes."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self.started_at = time.monotonic()
        self._output = output
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as stream:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tree(self) -> list[int]:
        """Return the pids of the server and its descendants, itself first."""
        return process_tree(self.pid)

    def check_alive(self) -> None:
        """Raise with the server's output if it ended."""
        code = self._process.poll()
        if code is not None:
            raise ServerFailedError(f"{self._process.args!r} ended with {code}\n{self.output_tail()}")

    def output_tail(self) -> str:
        """Return the last part of the server's output."""
        return self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""

    def stop(self, signal_pid: int | None = None) -> None:
        """End the server, with SIGTERM to `signal_pid` or itself, and its remaining children after it."""
        born = {pid: start_ticks(text) for pid in self.tree()[1:] if (text := _read(f"/proc/{pid}/stat"))}
        if self._process.poll() is None:
            os.kill(signal_pid or self.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid, ticks in born.items():
            text = _read(f"/proc/{pid}/stat")
            if text and start_ticks(text) == ticks:
                os.kill(pid, signal.SIGTERM)


def wait_for_port(port: int, server: ServerProcess, timeout_seconds: float = 60.0) -> None:
    """Return when something accepts connections on the port; raise if the server ends before."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            server.check_alive()
            time.sleep(0.005)
    raise ServerFailedError(f"nothing listens on port {port} after {timeout_seconds:g} s\n{server.output_tail()}")
