"""Real etcd members in processes of their own, on loopback: started, killed, stopped and started again on their data.

Owns the processes and their output files. It ends only what it started, by its pid. It must not know pytest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.support.brokers.broker_process import free_port

READY_TIMEOUT_SECONDS = 180
STOP_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.02

#: Requests go directly to members, without the machine's web proxy.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class EtcdFailedError(Exception):
    """A member did not start, or has no leader; the message carries its output."""


class EtcdMember:
    """One member with its own data directory, kept across restarts."""

    def __init__(self, directory: Path, name: str, options: Sequence[str], scheme: str = "http") -> None:
        self.name = name
        self.client_port = free_port()
        self.peer_port = free_port()
        # Health and metrics are told in plain text, also where clients have to encrypt.
        self.metrics_port = free_port()
        self._directory = directory / name
        self._log_path = directory / f"{name}.log"
        self._options = list(options)
        self._scheme = scheme
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, initial_cluster: str) -> None:
        """Start it; its cluster knows when it is ready."""
        executable = shutil.which("etcd")
        if executable is None:
            raise EtcdFailedError("there is no etcd here: scripts/setup-clients brings it")
        client_url = f"{self._scheme}://{self.endpoint}"
        command = [
            executable,
            *("--name", self.name),
            *("--data-dir", str(self._directory)),
            *("--listen-client-urls", client_url),
            *("--advertise-client-urls", client_url),
            *("--listen-peer-urls", self.peer_url),
            *("--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", initial_cluster),
            *("--listen-metrics-urls", f"http://127.0.0.1:{self.metrics_port}"),
            *self._options,
        ]
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without the machine's own settings for another etcd.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def kill(self) -> None:
        """End it with SIGKILL."""
        process = self._running()
        process.kill()
        process.wait(STOP_TIMEOUT_SECONDS)
        self._process = None

    def stop(self) -> None:
        """End it with SIGTERM."""
        process = self._running()
        process.send_signal(signal.SIGCONT)  # a stopped process cannot be asked to end
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_SECONDS)
        self._process = None

    def pause(self) -> None:
        """Stop it with SIGSTOP: its connections stay, and nobody answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def is_healthy(self) -> bool:
        """Whether it takes part in a cluster that has a leader."""
        try:
            return bool(json.loads(self._ask("health")).get("health") == "true")
        except (OSError, ValueError):
            return False

    def is_leader(self) -> bool:
        try:
            return b"\netcd_server_is_leader 1" in self._ask("metrics")
        except OSError:
            return False

    def _ask(self, path: str) -> bytes:
        """The body of an answer, whatever its status; OSError if there is none."""
        try:
            with _opener.open(f"http://127.0.0.1:{self.metrics_port}/{path}", timeout=5) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:  # otherwise it stays open until the collector finds it, about which Python 3.14 warns
                return refusal.read()

    def output(self) -> str:
        """The end of what it printed."""
        return self._log_path.read_text(errors="replace")[-4000:] if self._log_path.exists() else ""

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} is not running"
        return self._process


class EtcdCluster:
    """One member or several; use it as a context manager or call `start`."""

    def __init__(self, directory: Path, members: int = 1, options: Sequence[str] = (), scheme: str = "http") -> None:
        self.members = [EtcdMember(directory, f"member-{number}", options, scheme) for number in range(members)]
        self._initial_cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def __enter__(self) -> EtcdCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all members that are not running, and return when each of them is ready."""
        for member in self.members:
            if not member.is_running:
                member.start(self._initial_cluster)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        for member in self.members:
            while not member.is_healthy():
                if not member.is_running or time.monotonic() > deadline:
                    output = member.output()
                    self.stop()
                    raise EtcdFailedError(f"{member.name} is not ready\n{output}")
                time.sleep(_POLL_SECONDS)

    def leader(self) -> EtcdMember:
        """The member that leads; waits for an election."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for member in self.members:
                if member.is_running and member.is_leader():
                    return member
            time.sleep(_POLL_SECONDS)
        raise EtcdFailedError("nobody leads\n" + "\n".join(member.output() for member in self.members))

    def stop(self) -> None:
        for member in self.members:
            if member.is_running:
                member.stop()
