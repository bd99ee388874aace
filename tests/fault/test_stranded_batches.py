"""A batch stays unanswered with a former leader while its producer continues with the new one.

Clients do that: their limit of requests in flight is one for each connection. Whether the batch has reached the log or
not, it is acknowledged in the end, is in the log once, and the order is the one in which records were sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.wire.apis import ApiKey
from tests.support.brokers.broker_process import free_port
from tests.support.brokers.cluster_process import ClusterProcess, coordination_store
from tests.support.brokers.scrape import Scrape
from tests.support.clients.java_client import JavaBridge
from tests.support.history import read_everything
from tests.support.network.lossy_door import LossyDoor
from tests.support.topics import eventually

TOPIC, OTHER_TOPIC = "orders", "greetings"
OLD_LEADER = 1
#: More batches than a broker remembers.
LATER = 12
PATIENCE_SECONDS = 180.0
FAILED_PRODUCES = "kafka_server_brokertopicmetrics_failedproducerequests_total"
SOURCE = Path(__file__).with_name("java") / "StrandedProducer.java"


class Sending(Protocol):
    """An idempotent producer that sends one batch for each record."""

    def send(self, topic: str, value: str) -> None: ...

    def send_elsewhere(self, topic: str, value: str) -> None:
        """Send as soon as another leader is known."""

    def wait_for(self, value: str) -> None:
        """Wait until a record is acknowledged."""

    def close(self) -> None: ...


class JavaSending:
    def __init__(self, bootstrap: str, work_dir: Path) -> None:
        self._bridge = JavaBridge(work_dir, SOURCE)
        self._acknowledged: set[str] = set()
        self._bridge.send(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": "true",
                "metadata.max.age.ms": 300,
                "delivery.timeout.ms": 120_000,
                "request.timeout.ms": 60_000,
            }
        )

    def send(self, topic: str, value: str) -> None:
        self._bridge.send({"topic": topic, "value": value})

    def send_elsewhere(self, topic: str, value: str) -> None:
        self._bridge.send({"topic": topic, "value": value, "not_to": OLD_LEADER})

    def wait_for(self, value: str) -> None:
        while value not in self._acknowledged:
            told = self._bridge.receive()
            assert told["failure"] is None, told
            self._acknowledged.add(told["value"])

    def close(self) -> None:
        self._bridge.close()


class ConfluentSending:
    def __init__(self, bootstrap: str) -> None:
        self._acknowledged: set[str] = set()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "topic.metadata.refresh.interval.ms": 300,
                "socket.timeout.ms": 60_000,
                "delivery.timeout.ms": 120_000,
            }
        )

    def send(self, topic: str, value: str) -> None:
        self._producer.produce(topic, value.encode(), on_delivery=self._delivered)

    def send_elsewhere(self, topic: str, value: str) -> None:
        # It waits for its requests to the former leader before it sends to another one.
        self.send(topic, value)

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        self._acknowledged.add(message.value().decode())

    def wait_for(self, value: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while value not in self._acknowledged:
            assert time.monotonic() < deadline, f"{value} is not acknowledged, {sorted(self._acknowledged)} are"
            self._producer.poll(0.1)

    def close(self) -> None:
        self._producer.purge()


@pytest.fixture(params=["java", "confluent"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Stranding:
    """Three brokers, one of which is reached through a door that keeps what is lost there until it is told not to."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._lost = threading.Event()
        self._may_end = threading.Event()
        url = stack.enter_context(coordination_store("local", directory / "store"))
        self.cluster = ClusterProcess(directory, url, min_insync_replicas="2")
        self._metrics_ports = {broker.number: free_port() for broker in self.cluster.brokers}
        for broker in self.cluster.brokers:
            broker.configure(metrics_port=str(self._metrics_ports[broker.number]))
        old_leader = self.cluster.broker(OLD_LEADER)
        self.door = stack.enter_context(LossyDoor(old_leader.port, ApiKey.PRODUCE, 0, self._keep))
        old_leader.configure(advertised_listeners=f"PLAINTEXT://{self.door.bootstrap}")
        stack.enter_context(self.cluster)
        stack.callback(self._may_end.set)

    def _keep(self) -> None:
        self._lost.set()
        self._may_end.wait()

    def create(self, sending: Sending) -> None:
        """A topic with one partition, led by the broker behind the door; its producer knows another broker, too."""
        assignments = {TOPIC: [OLD_LEADER, 2, 3], OTHER_TOPIC: [2, 3, OLD_LEADER]}
        wanted = [
            NewTopic(name, 1, replica_assignment=[replicas], config={"min.insync.replicas": "2"})
            for name, replicas in assignments.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        for created in admin.create_topics(wanted, operation_timeout=60).values():
            created.result(90)
        self.cluster.wait_for(
            lambda state: {TOPIC, OTHER_TOPIC} <= {each["topic"] for each in state["partitions"]}, "the topics"
        )
        self.cluster.wait_until_whole()
        assert self.cluster.leader_of(TOPIC, 0).number == OLD_LEADER
        # The Java client prefers a connected broker for metadata requests.
        sending.send(OTHER_TOPIC, "hello")
        sending.wait_for("hello")

    def strand(self, sending: Sending, value: str) -> None:
        """Send a record whose answer is lost, and kill its leader."""
        sending.send(TOPIC, value)
        assert self._lost.wait(PATIENCE_SECONDS)
        self.cluster.broker(OLD_LEADER).kill()
        self.cluster.wait_for(
            lambda state: any(
                each["topic"] == TOPIC and each["leader"] not in (None, OLD_LEADER) for each in state["partitions"]
            ),
            "another leader",
        )

    def wait_until_refused(self) -> None:
        """Wait until the new leader has refused a batch."""
        port = self._metrics_ports[self.cluster.leader_of(TOPIC, 0).number]
        assert eventually(lambda: Scrape(port).value(FAILED_PRODUCES, topic=TOPIC) > 0)

    def end(self) -> None:
        """End the connection on which the producer waits."""
        self._may_end.set()

    def values(self) -> list[str]:
        return [value.decode() for value in read_everything(self.cluster.bootstrap, {TOPIC: 1})[TOPIC, 0]]


@pytest.fixture
def stranding(tmp_path: Path) -> Iterator[Stranding]:
    with ExitStack() as stack:
        yield Stranding(tmp_path, stack)


@pytest.fixture
def sending(kind: str, stranding: Stranding, tmp_path: Path) -> Iterator[Sending]:
    bootstrap = ",".join(stranding.cluster.broker(number).bootstrap for number in (2, 3))
    work_dir = tmp_path / "java"
    work_dir.mkdir()
    made: Sending = JavaSending(bootstrap, work_dir) if kind == "java" else ConfluentSending(bootstrap)
    yield made
    stranding.end()
    made.close()


def test_a_first_batch_that_never_arrived_is_taken_before_those_that_came_after_it(
    stranding: Stranding, sending: Sending, kind: str
) -> None:
    stranding.create(sending)
    stranding.door.lost_requests = 1
    stranding.strand(sending, "first")
    later = [f"later {number}" for number in range(3)]
    for value in later:
        sending.send_elsewhere(TOPIC, value)
    if kind == "java":
        stranding.wait_until_refused()
    stranding.end()
    for value in ("first", *later):
        sending.wait_for(value)
    assert stranding.values() == ["first", *later]


def test_a_batch_that_arrived_is_acknowledged_after_any_number_of_later_ones(
    stranding: Stranding, sending: Sending, kind: str
) -> None:
    stranding.create(sending)
    sending.send(TOPIC, "first")
    sending.wait_for("first")
    stranding.door.lost_answers = 1
    stranding.strand(sending, "stranded")
    later = [f"later {number}" for number in range(LATER)]
    for value in later:
        sending.send_elsewhere(TOPIC, value)
        if kind == "java":
            sending.wait_for(value)
    stranding.end()
    for value in ("stranded", *later):
        sending.wait_for(value)
    assert stranding.values() == ["first", "stranded", *later]
