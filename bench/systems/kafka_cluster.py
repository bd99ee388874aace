"""Three nodes of Apache Kafka, each broker and controller, KRaft, default settings and heap."""

from __future__ import annotations

from pathlib import Path

from bench.harness import processes
from bench.harness.processes import ServerProcess
from bench.systems.cluster import BROKERS, SESSION_MS, Cluster
from bench.systems.kafka import format_storage, new_uuid, server_command


class KafkaCluster(Cluster):
    """Brokers that are controllers too."""

    name = "kafka"

    def prepare(self) -> None:
        controllers = [processes.free_port() for _ in range(BROKERS)]
        cluster_id = new_uuid()
        initial = ",".join(f"{n}@127.0.0.1:{port}:{new_uuid()}" for n, port in enumerate(controllers, 1))
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
            format_storage(path, cluster_id, "--initial-controllers", initial)

    def _properties(self, number: int) -> Path:
        return self.directory / f"node-{number}.properties"

    def launch(self, number: int) -> ServerProcess:
        return ServerProcess(server_command(self._properties(number)), self.directory / f"node-{number}.log")

    def controller(self) -> int:
        with self.view() as view:
            return view.quorum_leader()
