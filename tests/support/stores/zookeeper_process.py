"""Real ZooKeeper servers in processes of their own, on loopback: started, killed, paused, started on their data again.

Owns the processes, their configuration and their output files. It ends only what it started, by its pid. It must not
know pytest.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.brokers.broker_process import free_port

READY_TIMEOUT_SECONDS = 240
STOP_TIMEOUT_SECONDS = 60
TICK_MS = 500
_POLL_SECONDS = 0.02

_JARS = Path("/usr/share/java")
# What zookeeper.jar does not name itself: where its log goes, and the rest of what its TLS needs.
_FURTHER_JARS = ("slf4j-simple.jar", "netty-codec.jar", "netty-resolver.jar", "netty-transport-native-unix-common.jar")
# Small and quickly started: three of them share a machine with everything else.
_JAVA_OPTIONS = ("-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class ZooKeeperFailedError(Exception):
    """A server did not start, or there is no leader; the message has its output."""


class ZooKeeperServer:
    """One server with its own data directory, kept across restarts."""

    def __init__(self, directory: Path, number: int, settings: Mapping[str, str]) -> None:
        self.number = number
        self.client_port = free_port()
        self.peer_port = free_port()
        self.election_port = free_port()
        self.directory = directory / f"server-{number}"
        self._log_path = directory / f"server-{number}.log"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, ensemble: list[ZooKeeperServer]) -> None:
        """Start it; its ensemble knows when it is ready."""
        java, jar = shutil.which("java"), _JARS / "zookeeper.jar"
        if java is None or not jar.exists():
            raise ZooKeeperFailedError("there is no java or no zookeeper.jar here: scripts/setup-clients brings them")
        self._configure(ensemble)
        command = [
            java,
            *_JAVA_OPTIONS,
            *("-cp", ":".join(str(_JARS / name) for name in (jar.name, *_FURTHER_JARS))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _configure(self, ensemble: list[ZooKeeperServer]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "myid").write_text(f"{self.number}\n")
        settings = {
            "tickTime": str(TICK_MS),
            "initLimit": "40",
            "syncLimit": "4",
            "dataDir": str(self.directory),
            "clientPort": str(self.client_port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            **self._settings,
        }
        if len(ensemble) > 1:
            for server in ensemble:
                settings[f"server.{server.number}"] = f"127.0.0.1:{server.peer_port}:{server.election_port}"
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self.directory / "zoo.cfg").write_text("".join(lines))

    def kill(self) -> None:
        """End it with SIGKILL."""
        process = self._running()
        process.kill()
        process.wait(STOP_TIMEOUT_SECONDS)
        self._process = None

    def stop(self) -> None:
        """End it with SIGTERM."""
        process = self._running()
        process.send_signal(signal.SIGCONT)
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

    def status(self) -> dict[str, str]:
        """What it says of itself; empty while it serves nobody."""
        try:
            with socket.create_connection(("127.0.0.1", self.client_port), timeout=5) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return {}
        fields = (line.partition(":") for line in answer.decode().splitlines())
        return {name: value.strip() for name, separator, value in fields if separator}

    @property
    def mode(self) -> str:
        """'leader', 'follower' or 'standalone'; '' while it serves nobody."""
        return self.status().get("Mode", "")

    def output(self) -> str:
        """The end of what it printed."""
        return self._log_path.read_text(errors="replace")[-4000:] if self._log_path.exists() else ""

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"server {self.number} is not running"
        return self._process


class ZooKeeperEnsemble:
    """One server or several; use it as a context manager or call `start`."""

    def __init__(self, directory: Path, servers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self.servers = [ZooKeeperServer(directory, number, settings or {}) for number in range(1, servers + 1)]

    @property
    def endpoints(self) -> list[str]:
        return [server.endpoint for server in self.servers]

    def __enter__(self) -> ZooKeeperEnsemble:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all servers that are not running, and return when each of them serves clients."""
        for server in self.servers:
            if not server.is_running:
                server.start(self.servers)
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        # All in one look: a server that was paused still says what it was until it notices that the others went on.
        while absent := [server for server in self.servers if not server.mode]:
            if time.monotonic() > deadline or not all(server.is_running for server in absent):
                output = "\n".join(server.output() for server in absent)
                self.stop()
                raise ZooKeeperFailedError(f"not ready: {[server.number for server in absent]}\n{output}")
            time.sleep(_POLL_SECONDS)

    def leader(self) -> ZooKeeperServer:
        """The server that leads, or is alone; waits for an election."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.is_running and server.mode in ("leader", "standalone"):
                    return server
            time.sleep(_POLL_SECONDS)
        raise ZooKeeperFailedError("nobody leads\n" + "\n".join(server.output() for server in self.servers))

    def stop(self) -> None:
        for server in self.servers:
            if server.is_running:
                server.stop()
