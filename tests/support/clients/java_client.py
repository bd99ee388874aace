"""Apache Kafka's Java client and tools behind the common shape of the client tests.

One JVM runs `InteropClient` for all tests of a session; the tools (`kafka-topics` and so on) are started by their
main classes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.clients.line_bridge import LineBridge, to_received, to_text
from tests.support.records import Received, Record, RefusedError

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "tests/interop/java/InteropClient.java"
CLASS_PATH = f"{ROOT}/.cache/kafka/lib/*"

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REPLICA_VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

# A short-lived JVM on a small machine: no time for the optimising compiler, little memory.
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def run_tool(
    main_class: str, *arguments: str, stdin: str = "", timeout_seconds: int = 180, with_errors: bool = False
) -> str:
    """Run one of Kafka's command line tools to its end and give its standard output, and its errors if asked for."""
    done = subprocess.run(
        [*JVM, "-cp", CLASS_PATH, main_class, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    if done.returncode != 0:
        raise RefusedError(None, f"{main_class} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr if with_errors else done.stdout


class JavaBridge(LineBridge):
    """The JVM that runs `InteropClient`, or another program that answers line by line."""

    def __init__(self, work_dir: Path, source: Path = SOURCE) -> None:
        subprocess.run(["javac", "-cp", CLASS_PATH, "-d", str(work_dir), str(source)], check=True, timeout=300)
        super().__init__([*JVM, "-cp", f"{work_dir}:{CLASS_PATH}", source.stem], work_dir / "stderr")


class JavaClient:
    """Produces and consumes by assignment with kafka-clients."""

    name = "java"

    def __init__(self, bootstrap: str, bridge: JavaBridge) -> None:
        self.bootstrap = bootstrap
        self.bridge = bridge

    def call(
        self,
        operation: str,
        *,
        config: dict[str, object] | None = None,
        on_event: Callable[[], None] | None = None,
        **fields: object,
    ) -> Any:
        """One operation of `InteropClient`."""
        request = {"op": operation, "bootstrap": self.bootstrap, "config": config or {}, **fields}
        return self.bridge.call(request, on_event=on_event)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        patience_ms: int = 60_000,
    ) -> list[tuple[int, int]]:
        """Send all, wait for all, and give the partition and offset of each."""
        config: dict[str, object] = {
            "compression.type": compression,
            "acks": acks,
            "linger.ms": 20,
            "max.request.size": 10_000_000,
            "max.block.ms": patience_ms,
        }
        if acks != "all":
            config["enable.idempotence"] = "false"
        sent = [
            {
                "key": to_text(record.key),
                "value": to_text(record.value),
                "partition": record.partition,
                "timestamp_ms": record.timestamp_ms,
                "headers": [[name, to_text(value)] for name, value in record.headers],
            }
            for record in records
        ]
        answers = self.call("produce", topic=topic, records=sent, config=config)
        return [(partition, offset) for partition, offset in answers]

    def consume(
        self,
        topic: str,
        partition: int,
        count: int,
        *,
        start: int = 0,
        max_wait_ms: int = 500,
        after_first: Callable[[], None] | None = None,
        timeout_seconds: int = 120,
    ) -> list[Received]:
        """Read `count` records from an offset on, or fewer when the time is over."""
        answer = self.call(
            "consume",
            topic=topic,
            partition=partition,
            start=start,
            count=count,
            timeout_seconds=timeout_seconds,
            announce_first=after_first is not None,
            config={"fetch.max.wait.ms": max_wait_ms, "auto.offset.reset": "none"},
            on_event=after_first,
        )
        return [to_received(fields) for fields in answer]

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first and the end offset of each partition."""
        answer = self.call("offsets", topic=topic, partitions=list(partitions))
        return {int(number): (first, last) for number, (first, last) in answer.items()}

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, None where all records are older."""
        found: int | None = self.call("offset_for_time", topic=topic, partition=partition, timestamp_ms=timestamp_ms)
        return found
