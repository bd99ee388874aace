"""Clusters of three servers on loopback, each server with data of its own: tailrace with etcd, and Apache Kafka.

Owns their start, the death of one server and its return, and their end. Both have the same session timeout. Must not
know any workload.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench import processes
from bench.cluster_view import View
from bench.processes import ServerFailedError, ServerProcess
from bench.systems.kafka import JARS, JVM_OPTIONS
from bench.systems.system import Handle
from bench.systems.tailrace import EXECUTABLE

BROKERS = 3
#: How long a broker may be silent before others lead in its place: the same for both.
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
        #: What the servers need beside themselves; counted with them.
        self.store: ServerProcess | None = None

    @property
    def handle(self) -> Handle:
        """All of them as one address: what is before the last port is the host, to whoever puts the two together."""
        return Handle(self.bootstrap.rpartition(":")[0], self.ports[-1], 0)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    # --- life

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
        """Make whatever has to be there before the first server."""

    @abstractmethod
    def launch(self, number: int) -> ServerProcess:
        """Start one server."""

    @abstractmethod
    def controller(self) -> int:
        """Which server is the controller."""

    def end(self) -> None:
        """End everything at once: the data is not needed any more."""
        for server in self._all():
            _kill(server)
        self.servers.clear()

    def _all(self) -> list[ServerProcess]:
        return [*self.servers.values(), *([] if self.store is None else [self.store])]

    def kill(self, number: int) -> float:
        """End one server with SIGKILL; when that was."""
        server = self.servers.pop(number)
        killed_at = time.monotonic()
        _kill(server)
        return killed_at

    @contextmanager
    def stopping(self, number: int) -> Iterator[float]:
        """Stop one server with SIGTERM; the block runs meanwhile, with the moment when that began."""
        thread = threading.Thread(target=self.servers.pop(number).stop)
        began = time.monotonic()
        thread.start()
        try:
            yield began
        finally:
            thread.join()

    def restart(self, number: int) -> None:
        """Start a server again, and return when all know of it."""
        self.servers[number] = self.launch(number)
        processes.wait_for_port(self.ports[number - 1], self.servers[number], PATIENCE_SECONDS)
        self.wait_until_complete()

    def check_alive(self) -> None:
        """Raise if one of them has ended by itself."""
        for server in self._all():
            server.check_alive()

    # --- what it takes

    def cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(server.tree()) for server in self._all())

    def cpu_seconds_of_each(self) -> dict[int, float]:
        """Of the servers, without what they need beside themselves."""
        return {number: processes.cpu_seconds(server.tree()) for number, server in self.servers.items()}

    def rss_mb(self) -> float:
        return sum(processes.rss_mb(server.tree()) for server in self._all())

    # --- topics

    def create(self, topics: Sequence[str], partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create topics of three replicas, and return when all of them are in sync."""
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
        """What one server says; any of them where it does not matter."""
        return View(self.ports[(number or next(iter(self.servers))) - 1])

    def leader_of(self, topic: str, partition: int) -> int:
        with self.view() as view:
            return view.partitions([topic])[topic, partition].leader_id

    def wait_for(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Return when a condition holds; a server that is not reached is asked again."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (KafkaException, OSError, ServerFailedError):
                self.check_alive()
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name}: not as it should be after {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)


def _kill(server: ServerProcess) -> None:
    for pid in reversed(server.tree()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    server.stop()


class TailraceCluster(Cluster):
    """Brokers as `tailrace serve` runs them, with their metadata in etcd: what a cluster of machines has."""

    name = "tailrace"
    store_url: str

    def prepare(self) -> None:
        client, peer = (f"http://127.0.0.1:{processes.free_port()}" for _ in range(2))
        command = [
            *("etcd", "--data-dir", str(self.directory / "etcd"), "--initial-cluster", f"default={peer}"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        ]
        self.store = ServerProcess(command, self.directory / "etcd.log")
        address = client.removeprefix("http://")
        self.store_url = f"etcd://{address}/bench"
        processes.wait_for_port(int(address.partition(":")[2]), self.store)

    def launch(self, number: int) -> ServerProcess:
        command = [
            *(str(EXECUTABLE), "serve", "--node-id", str(number), "--port", str(self.ports[number - 1])),
            *("--data-dir", str(self.directory / f"broker-{number}"), "--coordination", self.store_url),
            *("--log-format", "json", "--set", f"broker.session.timeout.ms={SESSION_MS}"),
        ]
        return ServerProcess(command, self._log(number))

    def _log(self, number: int) -> Path:
        return self.directory / f"broker-{number}.log"

    def controller(self) -> int:
        with self.view() as view:
            return view.metadata().controller_id

    def events(self, number: int) -> list[dict[str, Any]]:
        """What a broker has logged, each with `at`, the seconds of its wall clock."""
        found = []
        for line in self._log(number).read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # what the process says before its logging begins
            found.append({**event, "at": datetime.fromisoformat(event["ts"]).timestamp()})
        return found


class KafkaCluster(Cluster):
    """Three combined brokers and controllers, KRaft, default settings and heap."""

    name = "kafka"

    def prepare(self) -> None:
        controllers = [processes.free_port() for _ in range(BROKERS)]
        cluster_id = _kafka_uuid()
        initial = ",".join(f"{n}@127.0.0.1:{port}:{_kafka_uuid()}" for n, port in enumerate(controllers, 1))
        voters = ",".join(f"127.0.0.1:{port}" for port in controllers)
        for number, (port, controller) in enumerate(zip(self.ports, controllers, strict=True), 1):
            listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
            properties = {
                "process.roles": "broker,controller",
                "node.id": str(number),
                "controller.quorum.bootstrap.servers": voters,
                "listeners": listeners,
                "advertised.listeners": listeners,
                "inter.broker.listener.name": "PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "log.dirs": str(self.directory / f"node-{number}"),
                "broker.session.timeout.ms": str(SESSION_MS),
            }
            path = self._properties(number)
            path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
            command = ["java", "-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format", "-t", cluster_id]
            command += ["--initial-controllers", initial, "-c", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServerFailedError(f"Kafka's storage could not be formatted\n{done.stdout}{done.stderr}")

    def _properties(self, number: int) -> Path:
        return self.directory / f"node-{number}.properties"

    def launch(self, number: int) -> ServerProcess:
        command = ["java", *JVM_OPTIONS, "-cp", f"{JARS}/*", "kafka.Kafka", str(self._properties(number))]
        return ServerProcess(command, self.directory / f"node-{number}.log")

    def controller(self) -> int:
        with self.view() as view:
            return view.quorum_leader()


def _kafka_uuid() -> str:
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
