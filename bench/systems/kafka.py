"""Apache Kafka: one KRaft node from the jars of Maven Central, default settings and heap."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from bench.harness import processes
from bench.harness.failures import ServerFailedError
from bench.harness.paths import CACHE
from bench.harness.processes import ServerProcess
from bench.systems.system import System

JARS = CACHE / "kafka/lib"

#: The JVM options of bin/kafka-run-class.sh and bin/kafka-server-start.sh of Kafka 4.1.
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

#: config/server.properties of Kafka 4.1, with the benchmark's ports and directory.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={log_dir}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


class Kafka(System):
    """A combined broker and controller, whose storage is formatted before the start."""

    name = "kafka"
    durability = "default settings, one replica: acknowledged when written to the page cache; the kernel flushes it"
    client = "rdbench (librdkafka) and rawbench (raw sockets)"
    speaks_kafka = True

    def version(self) -> str:
        names = [path.name for path in JARS.glob("kafka-server-[0-9]*.jar")]
        if not names:
            raise ServerFailedError(f"no Kafka jars in {JARS}: run scripts/setup-bench")
        return names[0].removeprefix("kafka-server-").removesuffix(".jar")

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        properties = data_dir / "server.properties"
        properties.write_text(
            PROPERTIES.format(port=port, controller_port=processes.free_port(), log_dir=data_dir / "data")
        )
        # Formatting is not part of the start: a user does it once.
        format_storage(properties, new_uuid(), "--standalone")
        return ServerProcess(server_command(properties), data_dir / "output")


def format_storage(properties: Path, cluster_id: str, *options: str) -> None:
    """Format the directory of a node, which Kafka requires before its first start."""
    command = ["java", "-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format", *options, "-t", cluster_id]
    done = subprocess.run([*command, "-c", str(properties)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailedError(f"cannot format Kafka's storage\n{done.stdout}{done.stderr}")


def server_command(properties: Path) -> list[str]:
    """Return the command that starts a node."""
    return ["java", *JVM_OPTIONS, "-cp", f"{JARS}/*", "kafka.Kafka", str(properties)]


def new_uuid() -> str:
    """Return an id as Kafka writes them; its tools would parse one with a leading dash as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
