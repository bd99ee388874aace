"""Three brokers beside three nodes of Apache Kafka, in one run: `python -m bench.cluster`.

Measures what replicas cost (produce throughput and latency with acks=all, three copies), how long a partition cannot be
written to after its leader is killed, and of ours alone how the controller copes with ten thousand partitions and what
a thousand of them cost while nothing happens. Both have the same session timeout. Results: bench/results/cluster.json.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import machine, processes, report
from bench.clients import ClientFailedError, Metrics, rdbench, run_client, with_costs
from bench.processes import ServerFailedError, ServerProcess
from bench.ratios import Sample, compute_ratios
from bench.systems.kafka import JARS, JVM_OPTIONS, Kafka
from bench.systems.system import ROOT, Handle
from bench.systems.tailrace import EXECUTABLE, Tailrace

RESULTS = ROOT / "bench/results/cluster.json"
BROKERS = 3
#: How long a broker may be silent before others lead in its place: the same for both.
SESSION_MS = 6000
PARTITIONS = 6
_PATIENCE_SECONDS = 120.0
_WARM_UP_MESSAGES = 300_000

JUDGED_BY: Mapping[str, Sequence[str]] = {
    "produce-1k-acks-all": ("throughput_mb_s", "cpu_s_per_gb", "rss_mb"),
    "produce-100b-acks-all": ("throughput_mb_s", "cpu_s_per_gb"),
    "latency-1k-per-s-acks-all": ("p50_ms", "p99_ms"),
    "leader-killed": ("failover_s",),
}


class Cluster(ABC):
    """Three servers of one system on loopback, each with its own data."""

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

    def start(self) -> None:
        """Start all, and return when each accepts connections."""
        self.prepare()
        for number in range(1, BROKERS + 1):
            self.servers[number] = self.launch(number)
        for number, server in self.servers.items():
            processes.wait_for_port(self.ports[number - 1], server)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.wait_for(lambda: len(self.admin.list_topics(timeout=10).brokers) == BROKERS)

    @abstractmethod
    def prepare(self) -> None:
        """Make whatever has to be there before the first server."""

    @abstractmethod
    def launch(self, number: int) -> ServerProcess:
        """Start one server."""

    def stop(self) -> None:
        for server in self._all():
            server.stop()

    def _all(self) -> list[ServerProcess]:
        return [*reversed(list(self.servers.values())), *([] if self.store is None else [self.store])]

    def kill(self, number: int) -> None:
        """End one server with SIGKILL."""
        server = self.servers.pop(number)
        os.kill(server.pid, signal.SIGKILL)
        server.stop()

    def restart(self, number: int) -> None:
        self.servers[number] = self.launch(number)
        processes.wait_for_port(self.ports[number - 1], self.servers[number])

    def cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(server.tree()) for server in self._all())

    def rss_mb(self) -> float:
        return sum(processes.rss_mb(server.tree()) for server in self._all())

    def create(self, topic: str, partitions: int = PARTITIONS, replicas: int = BROKERS) -> None:
        """Create a topic, and return when all its replicas are in sync."""
        wanted = NewTopic(topic, partitions, replicas, config={"min.insync.replicas": "2"} if replicas > 2 else {})
        self.admin.create_topics([wanted], operation_timeout=60, request_timeout=60)[topic].result(90)
        self.wait_until_in_sync([topic])

    def wait_until_in_sync(self, topics: Sequence[str]) -> None:
        def is_whole() -> bool:
            metadata = self.admin.list_topics(timeout=10)
            found = [metadata.topics[name] for name in topics if name in metadata.topics]
            return len(found) == len(topics) and all(
                partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
                for topic in found
                for partition in topic.partitions.values()
            )

        self.wait_for(is_whole)

    def leader_of(self, topic: str, partition: int) -> int:
        leader: int = self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
        return leader

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                if condition():
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name}: not as it should be after {_PATIENCE_SECONDS:.0f} s")
            time.sleep(0.05)


class TailraceCluster(Cluster):
    """Brokers as `tailrace serve` runs them, with their metadata in etcd: what a cluster of machines has."""

    name = "tailrace"

    def prepare(self) -> None:
        client, peer = processes.free_port(), processes.free_port()
        self._address = f"etcd://127.0.0.1:{client}/bench"
        directory = self.directory / "etcd"
        self.store = ServerProcess(
            [
                *("etcd", "--data-dir", str(directory), "--listen-client-urls", f"http://127.0.0.1:{client}"),
                *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
                *(
                    "--listen-peer-urls",
                    f"http://127.0.0.1:{peer}",
                    "--initial-cluster",
                    f"default=http://127.0.0.1:{peer}",
                ),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            ],
            self.directory / "etcd.log",
        )
        processes.wait_for_port(client, self.store)

    def launch(self, number: int) -> ServerProcess:
        command = [
            *(str(EXECUTABLE), "serve", "--node-id", str(number), "--port", str(self.ports[number - 1])),
            *("--data-dir", str(self.directory / f"broker-{number}"), "--coordination", self._address),
            *("--set", f"broker.session.timeout.ms={SESSION_MS}"),
        ]
        return ServerProcess(command, self.directory / f"broker-{number}.log")


class KafkaCluster(Cluster):
    """Three combined brokers and controllers, KRaft, default settings and heap."""

    name = "kafka"

    def prepare(self) -> None:
        self._controllers = [processes.free_port() for _ in range(BROKERS)]
        cluster_id = _kafka_uuid()
        initial = ",".join(f"{n}@127.0.0.1:{port}:{_kafka_uuid()}" for n, port in enumerate(self._controllers, 1))
        voters = ",".join(f"127.0.0.1:{port}" for port in self._controllers)
        for number in range(1, BROKERS + 1):
            port, controller = self.ports[number - 1], self._controllers[number - 1]
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
                "offsets.topic.replication.factor": "3",
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


def _kafka_uuid() -> str:
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


# --- what both are measured by


def produce(cluster: Cluster, name: str, size: int, count: int) -> Metrics:
    """As many messages as go, acknowledged by all replicas."""
    cluster.create(name)
    before = cluster.cpu_seconds()
    command = rdbench(
        "produce", cluster.handle, name, partitions=PARTITIONS, count=count, size=size, acks="all", seconds=20
    )
    result = run_client(command)
    usage = {"server_cpu_s": cluster.cpu_seconds() - before, "rss_mb": cluster.rss_mb()}
    return with_costs(result, usage)


def latency(cluster: Cluster, name: str, seconds: float) -> Metrics:
    """End to end at a thousand messages a second, acknowledged by all replicas."""
    cluster.create(name, partitions=1)
    return run_client(
        rdbench(
            "latency", cluster.handle, name, rate=1000, seconds=f"{seconds:g}", size=100, warmup_seconds=2, acks="all"
        )
    )


def failovers(cluster: Cluster, name: str, count: int, say: Callable[[str], None]) -> list[float]:
    """From SIGKILL of a partition's leader to the next acknowledged write to it, again and again."""
    cluster.create(name, partitions=1)
    found = []
    for number in range(count):
        leader = cluster.leader_of(name, 0)
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "log_level": 0,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "socket.timeout.ms": 5000,
            }
        )
        _write(producer, name)
        killed_at = time.monotonic()
        cluster.kill(leader)
        _write(producer, name)
        found.append(time.monotonic() - killed_at)
        say(f"failover {number + 1} of {count}: {found[-1]:.2f} s")
        cluster.restart(leader)
        cluster.wait_for(lambda: len(cluster.admin.list_topics(timeout=10).brokers) == BROKERS)
        cluster.wait_until_in_sync([name])
    return found


def _write(producer: Producer, topic: str) -> None:
    problems: list[object] = []
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: problems.append(error) if error else None)
    if producer.flush(_PATIENCE_SECONDS) or problems:
        raise ClientFailedError(f"a record was not acknowledged: {problems}")


def measure(cluster: Cluster, round_number: int, scale: float, kills: int, say: Callable[[str], None]) -> list[Sample]:
    """Everything that both are compared by, once."""
    samples = []

    def note(workload: str, metrics: Mapping[str, float]) -> None:
        samples.append(Sample(cluster.name, workload, round_number, metrics))
        figures = [f"{name} {report.number(metrics[name])}" for name in JUDGED_BY[workload] if name in metrics]
        say(f"{workload}: {', '.join(figures)}")

    say("warm-up")
    produce(cluster, "warm-up", 1000, int(_WARM_UP_MESSAGES * scale))
    note("produce-1k-acks-all", produce(cluster, "bulk-1k", 1000, int(500_000 * scale)))
    note("produce-100b-acks-all", produce(cluster, "bulk-100b", 100, int(2_000_000 * scale)))
    note("latency-1k-per-s-acks-all", latency(cluster, "paced", max(10 * scale, 2)))
    found = failovers(cluster, "failing", kills, say)
    note("leader-killed", {"failover_s": statistics.median(found), "longest_s": max(found)})
    return samples


# --- what only ours is measured by


def controller_figures(cluster: Cluster, scale: float, say: Callable[[str], None]) -> Metrics:
    """Ten thousand partitions loaded by a new controller, a thousand leaders moved, and a broker that idles."""
    topics = max(int(100 * scale), 2)
    wanted = [NewTopic(f"many-{number}", 100, 3) for number in range(topics)]
    for first in range(0, topics, 10):
        for future in cluster.admin.create_topics(
            wanted[first : first + 10], operation_timeout=120, request_timeout=120
        ).values():
            future.result(180)
        say(f"{min(first + 10, topics) * 100} partitions created")
    cluster.wait_until_in_sync([topic.topic for topic in wanted])
    idle = _idle_share(cluster, 1, 10.0)
    say(f"a broker with {topics * 100} partitions takes {idle:.1%} of a core while nothing happens")
    return {"partitions": topics * 100, "idle_share_of_core": idle}


def _idle_share(cluster: Cluster, number: int, seconds: float) -> float:
    tree = cluster.servers[number].tree()
    time.sleep(2)
    before, began = processes.cpu_seconds(tree), time.monotonic()
    time.sleep(seconds)
    return (processes.cpu_seconds(tree) - before) / (time.monotonic() - began)


# --- the run


def run(rounds: int, scale: float, kills: int, scratch: Path) -> dict[str, Any]:
    """All rounds; who goes first alternates."""
    samples: list[Sample] = []
    own: list[Metrics] = []
    started = time.monotonic()
    for number in range(1, rounds + 1):
        order = [TailraceCluster, KafkaCluster] if number % 2 else [KafkaCluster, TailraceCluster]
        for kind in order:

            def say(text: str, kind: type[Cluster] = kind, number: int = number) -> None:
                minutes = (time.monotonic() - started) / 60
                print(f"[{minutes:5.1f} min] round {number}/{rounds} {kind.name}: {text}", flush=True)

            samples += _with_cluster(
                kind, scratch, lambda each, say=say, number=number: measure(each, number, scale, kills, say)
            )
            if kind is TailraceCluster and number == 1:
                own = _with_cluster(kind, scratch, lambda each, say=say: [controller_figures(each, scale, say)])
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": (time.monotonic() - started) / 60,
        "machine": machine.describe_machine(scratch),
        "versions": {"tailrace": Tailrace().version(), "kafka": Kafka().version()},
        "settings": {
            "brokers": BROKERS,
            "replicas": BROKERS,
            "min.insync.replicas": 2,
            "broker.session.timeout.ms": SESSION_MS,
            "rounds": rounds,
            "scale": scale,
            "kills": kills,
        },
        "ratios": compute_ratios(samples, JUDGED_BY),
        "controller": own[0] if own else {},
        "samples": [
            {"system": each.system, "workload": each.workload, "round": each.round, "metrics": dict(each.metrics)}
            for each in samples
        ],
    }


def _with_cluster(kind: type[Cluster], scratch: Path, work: Callable[[Cluster], list[Any]]) -> list[Any]:
    directory = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=scratch))
    cluster = kind(directory)
    try:
        cluster.start()
        return work(cluster)
    finally:
        cluster.stop()
        shutil.rmtree(directory)
        os.sync()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.cluster", description="three brokers beside three nodes of Kafka")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of messages")
    parser.add_argument("--kills", type=int, default=5, help="leaders killed in each round")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cluster-", dir=options.scratch))
    try:
        results = run(options.rounds, options.scale, options.kills, scratch)
    finally:
        shutil.rmtree(scratch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    rows = report.ratio_rows({**results, "shares": []})
    print("\n" + report.plain_table(rows, report.HEADINGS))
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
