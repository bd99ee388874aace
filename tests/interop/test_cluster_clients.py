"""Real clients over three brokers: every leader is written to and read from, groups are coordinated by another broker
than the one the client was told of, and partitions are added while producers and consumers go on.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.brokers.cluster_load import JavaSender
from tests.support.brokers.cluster_process import ClusterProcess, coordination_store
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaClient
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.clients.kcat_client import KcatClient
from tests.support.clients.node_client import NodeClient
from tests.support.clients.raw_client import RawClient
from tests.support.groups import fleet as kinds
from tests.support.groups.fleet import Fleet, Kind, Place, fleet
from tests.support.history import read_everything, record_of
from tests.support.records import Record
from tests.support.topics import create_topic, eventually

PARTITIONS = 6
#: The number of records for each partition and kind of acks.
RECORDS = 20
PATIENCE_SECONDS = kinds.PATIENCE_SECONDS


@dataclass(frozen=True)
class Subject:
    """A client, the acknowledgements that it lets one ask for, and the kinds of group members it can be."""

    name: str
    connect: Callable[[str, pytest.FixtureRequest], Any]
    #: acks=0 comes last: nothing tells when its records are in the log, so nothing may be written after them.
    acks: tuple[str, ...]
    kinds: tuple[Kind, ...] = ()


SUBJECTS = [
    Subject(
        "confluent",
        lambda bootstrap, _: ConfluentClient(bootstrap),
        ("all", "1", "2", "3", "0"),
        (kinds.CONFLUENT_RANGE, kinds.CONFLUENT_CONSUMER),
    ),
    Subject(
        "kafka-python",
        lambda bootstrap, _: KafkaPythonClient(bootstrap),
        ("all", "1", "2", "0"),
        (kinds.KAFKA_PYTHON,),
    ),
    Subject("aiokafka", lambda bootstrap, _: AiokafkaClient(bootstrap), ("all", "1", "0"), (kinds.AIOKAFKA,)),
    Subject("kcat", lambda bootstrap, _: KcatClient(bootstrap), ("all", "1", "2", "0")),
    Subject(
        "kafkajs",
        lambda bootstrap, request: NodeClient(bootstrap, request.getfixturevalue("kafkajs_bridge")),
        ("all", "1", "2", "0"),
        (kinds.KAFKAJS,),
    ),
    Subject(
        "platformatic",
        lambda bootstrap, request: NodeClient(bootstrap, request.getfixturevalue("platformatic_bridge")),
        ("all", "1", "0"),
        (kinds.PLATFORMATIC,),
    ),
    Subject(
        "java",
        lambda bootstrap, request: JavaClient(bootstrap, request.getfixturevalue("java_bridge")),
        ("all", "1", "0"),
        (kinds.JAVA_COOPERATIVE, kinds.JAVA_CONSUMER),
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three brokers for all tests of this file, without faults."""
    directory = tmp_path_factory.mktemp("cluster")
    config = {
        "min_insync_replicas": "2",
        # Nothing is asserted to move: no broker and no member may be missed because the machine is busy.
        "broker_session_timeout_ms": "30000",
        "group_consumer_session_timeout_ms": str(kinds.CALM_SESSION_TIMEOUT_MS),
        "group_consumer_heartbeat_interval_ms": str(kinds.HEARTBEAT_INTERVAL_MS),
    }
    with coordination_store("local", directory / "store") as url, ClusterProcess(directory, url, **config) as made:
        yield made
        for broker in made.brokers:
            assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


@pytest.fixture(scope="module", autouse=True)
def java_program(tmp_path_factory: pytest.TempPathFactory) -> None:
    kinds.compile_java(tmp_path_factory.mktemp("member"))


def states_of(cluster: ClusterProcess, topic: str) -> dict[int, dict[str, Any]]:
    """The partitions of a topic as `tailrace cluster status` shows them, when all replicas are in sync."""
    state = cluster.wait_until_whole()
    return {
        each["partition"]: {**each, "isr": sorted(each["isr"])}
        for each in state["partitions"]
        if each["topic"] == topic
    }


def group_elsewhere(cluster: ClusterProcess, name: str) -> str:
    """A group whose coordinator is not the first broker."""
    found: list[str] = []

    def look() -> bool:
        with RawClient(cluster.broker(1).port) as client:
            for number in itertools.count():
                group = f"{name}-{number}"
                answer = client.ask(FindCoordinatorRequest(key=group), 3, FindCoordinatorResponse)
                if answer.error_code:
                    return False  # the topic of all groups is only being made
                if answer.node_id != 1:
                    found.append(group)
                    return True
        raise AssertionError("unreachable")

    assert eventually(look, timeout_seconds=PATIENCE_SECONDS)
    return found[0]


def coordinator_of(cluster: ClusterProcess, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.broker(1).bootstrap, "log_level": 0})
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    number: int = described.coordinator.id
    return number


def committed(cluster: ClusterProcess, group: str, places: Mapping[Place, int]) -> dict[Place, int]:
    """The committed offsets of a group, as another client sees them."""
    consumer = Consumer({"bootstrap.servers": cluster.broker(1).bootstrap, "group.id": group, "log_level": 0})
    try:
        asked = [TopicPartition(topic, number) for topic, number in sorted(places)]
        return {(one.topic, one.partition): one.offset for one in consumer.committed(asked, timeout=PATIENCE_SECONDS)}
    finally:
        consumer.close()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_client_that_knows_one_broker_writes_to_and_reads_from_all(
    cluster: ClusterProcess,
    subject: Subject,
    topic_name: Callable[[], str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    entrance = cluster.broker(1).bootstrap
    client = subject.connect(entrance, request)
    topic = create_topic(entrance, topic_name(), partitions=PARTITIONS, min_insync_replicas="2")
    states = states_of(cluster, topic)
    assert sorted(state["leader"] for state in states.values()) == [1, 1, 2, 2, 3, 3]
    assert all(sorted(state["replicas"]) == [1, 2, 3] for state in states.values())

    sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for acks in subject.acks:
        records = [Record(b"%s %d" % (acks.encode(), n), partition=n % PARTITIONS) for n in range(RECORDS * PARTITIONS)]
        positions = client.produce(topic, records, acks=acks)
        expected = []
        for partition, values in sent.items():
            share = [record.value for record in records if record.partition == partition]
            expected += [(partition, len(values) + number) for number in range(len(share))]
            values += [value for value in share if value is not None]
        if acks != "0" and positions is not None:
            assert sorted(positions) == expected, f"acks={acks}"

    for partition, values in sent.items():
        received = client.consume(topic, partition, len(values))
        assert [(one.offset, one.value) for one in received] == list(enumerate(values))

    ends = {(topic, partition): len(values) for partition, values in sent.items()}
    if not subject.kinds:
        read_by_kcat(cluster, client, topic, sent)
    for kind in subject.kinds:
        group = group_elsewhere(cluster, f"{topic}-{kind.name}")
        with fleet(entrance, group, [topic], tmp_path, kinds.CALM_SESSION_TIMEOUT_MS) as crew:
            members = [crew.start(kind) for _ in range(2)]
            crew.wait_until_shared(members, ends)
            crew.wait_until_processed(ends)
            assert coordinator_of(cluster, group) != 1
            # The last commit may have just begun.
            crew.wait("all should be committed", lambda group=group: committed(cluster, group, ends) == ends)
            crew.stop()
            crew.check(ends)


def read_by_kcat(cluster: ClusterProcess, client: KcatClient, topic: str, sent: Mapping[int, list[bytes]]) -> None:
    """kcat as the only member of a group: it has no lines for what it is given, only for records."""
    group = group_elsewhere(cluster, f"{topic}-kcat")
    total = sum(map(len, sent.values()))
    output = client.run(
        *("-G", group, "-J", "-q", "-c", str(total), "-X", "auto.offset.reset=earliest", topic),
        timeout_seconds=PATIENCE_SECONDS,
    )
    read: dict[int, list[bytes]] = {partition: [] for partition in sent}
    for line in output.splitlines():
        record = json.loads(line)
        assert record["offset"] == len(read[record["partition"]])
        read[record["partition"]].append(record["payload"].encode())
    assert read == sent
    assert coordinator_of(cluster, group) != 1
    ends = {(topic, partition): len(values) for partition, values in sent.items()}
    assert eventually(lambda: committed(cluster, group, ends) == ends, timeout_seconds=PATIENCE_SECONDS)


class FreeSender(threading.Thread):
    """librdkafka left to choose partitions by itself, idempotent; remembers where each record was put."""

    NAME = "free"

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name=self.NAME, daemon=True)
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failed: list[str] = []
        self.sent = 0
        self._topic = topic
        self._over = threading.Event()
        self._producer: Producer = ConfluentClient(bootstrap).producer(
            enable_idempotence=True, topic_metadata_refresh_interval_ms=500, linger_ms=2
        )

    def run(self) -> None:
        while not self._over.wait(0.01):
            for _ in range(5):
                value = f"{self.NAME}:{self.sent}:".encode()
                self._producer.produce(self._topic, value, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error.str())
        else:
            self.acknowledged[message.partition(), message.offset()] = record_of(message.value())[1]

    def send_no_more(self) -> None:
        self._over.set()

    def finish(self) -> None:
        self.send_no_more()
        # Longer than the flush may take, so that it says itself what was not sent.
        self.join(2 * PATIENCE_SECONDS)
        assert not self.is_alive()

    def check(self, topic: str, logs: Mapping[tuple[str, int], list[bytes]]) -> None:
        """Check that every record is there once, at its acknowledged offset, and in order within its partition."""
        assert not self.failed, self.failed[:3]
        assert sorted(self.acknowledged.values()) == list(range(self.sent))
        for (partition, offset), number in self.acknowledged.items():
            assert record_of(logs[topic, partition][offset]) == (self.NAME, number)
        for values in logs.values():
            own = [record_of(value)[1] for value in values if value.startswith(b"free:")]
            assert own == sorted(own)
        assert sum(value.startswith(b"free:") for values in logs.values() for value in values) == self.sent


def test_partitions_are_added_while_clients_write_and_read_and_nothing_moves(
    cluster: ClusterProcess, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=3)
    at_first = states_of(cluster, topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    free = FreeSender(cluster.bootstrap, topic)
    # Java's producer stays with a partition until it has filled a batch.
    java = JavaSender(cluster.bootstrap, topic, tmp_path, {"metadata.max.age.ms": 500, "batch.size": 200})
    calm = kinds.CALM_SESSION_TIMEOUT_MS
    with (
        ExitStack() as senders,
        fleet(cluster.bootstrap, f"{topic}-confluent", [topic], tmp_path, calm) as confluent_crew,
        fleet(cluster.bootstrap, f"{topic}-java", [topic], tmp_path, calm) as java_crew,
    ):
        senders.callback(free.send_no_more)
        senders.callback(java.kill)
        crews: dict[Fleet, Kind] = {confluent_crew: kinds.CONFLUENT_COOPERATIVE, java_crew: kinds.JAVA_CONSUMER}
        members = {crew: [crew.start(kind) for _ in range(2)] for crew, kind in crews.items()}
        free.start()
        java.start()
        present = 3
        for count in (3, 6, 7):
            if count > present:
                admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE_SECONDS)
            begin = time.monotonic()
            wait_until_written(free, java, set(range(count)))
            written = time.monotonic()
            for crew, of_crew in members.items():
                crew.wait_until_shared(of_crew, places_of(topic, count))
            print(f"{count} partitions: written after {written - begin:.1f} s, read {time.monotonic() - written:.1f} s")
            present = count
        free.finish()
        java.finish()
        offsets = ConfluentClient(cluster.bootstrap).offsets(topic, range(present))
        ends = {(topic, partition): end for partition, (_, end) in offsets.items()}
        for crew in crews:
            crew.wait_until_processed(ends)
            crew.stop()
            crew.check(ends)
    logs = read_everything(cluster.bootstrap, {topic: present})
    free.check(topic, logs)
    java.check(topic, logs)
    numbers = [[int(value) for value in values if value.isdigit()] for values in logs.values()]
    assert all(own == sorted(own) for own in numbers), "Java's records are not in order"
    states = states_of(cluster, topic)
    assert {partition: states[partition] for partition in at_first} == at_first
    assert all(len(dict.fromkeys(state["replicas"])) == 3 for state in states.values())
    assert {state["leader"] for state in states.values()} == {1, 2, 3}


def places_of(topic: str, count: int) -> list[Place]:
    return [(topic, partition) for partition in range(count)]


def wait_until_written(free: FreeSender, java: JavaSender, partitions: set[int]) -> None:
    """Wait until both producers have had records acknowledged by all partitions."""
    for sender in (free, java):
        assert eventually(
            lambda sender=sender: {partition for partition, _ in list(sender.acknowledged)} == partitions,
            timeout_seconds=PATIENCE_SECONDS,
        ), f"{sender.name} has written to {sorted({partition for partition, _ in list(sender.acknowledged)})}"
