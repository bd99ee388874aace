"""Real clients over three brokers while the id of their topic changes: they refresh metadata and continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tailrace.cluster.metadata import ClusterMetadata
from tailrace.model import TopicPartition
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.options import Selection
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.tasks import Tasks
from tailrace.stores.opening import open_store
from tests.support.brokers.cluster_load import JavaSender
from tests.support.brokers.cluster_process import ClusterProcess, coordination_store
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.groups import fleet as kinds
from tests.support.groups.fleet import Fleet, Kind, fleet
from tests.support.history import Load, Sender, check_sender, read_everything
from tests.support.topics import create_topic, delete_topic, eventually

PARTITIONS = 3
#: Each sender gets this many records acknowledged before each change of the id, and after the last one.
RECORDS = 300
KINDS = [
    kinds.CONFLUENT_RANGE,
    kinds.CONFLUENT_CONSUMER,
    kinds.KAFKA_PYTHON,
    kinds.AIOKAFKA,
    kinds.JAVA_COOPERATIVE,
    kinds.JAVA_CONSUMER,
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    directory = tmp_path_factory.mktemp("cluster")
    config = {
        "min_insync_replicas": "2",
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


def id_of(cluster: ClusterProcess, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(kinds.PATIENCE_SECONDS)
    return str(described.topic_id)


def change_id(cluster: ClusterProcess, topic: str) -> None:
    """Change a topic's id, as a broker would, while brokers and clients run."""

    async def change() -> None:
        failures: list[BaseException] = []
        tasks = Tasks(failures.append)
        store = open_store(cluster.coordination, SystemClock())
        metadata = ClusterMetadata(store, Random(), 99, tasks)
        try:
            await metadata.load()
            await metadata.change_topic_id(metadata.image.topics[topic])
        finally:
            await tasks.cancel()
            await store.close()
        assert not failures

    before = id_of(cluster, topic)
    asyncio.run(change())
    assert eventually(lambda: id_of(cluster, topic) != before)


def test_clients_write_read_and_commit_while_the_id_of_their_topic_changes(
    cluster: ClusterProcess, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=PARTITIONS)
    config = {"enable.idempotence": True, "topic.metadata.refresh.interval.ms": 1000}
    load = Load("free", topic, config, is_idempotent=True, partitions=PARTITIONS, pause_seconds=0.02)
    free = Sender(cluster.bootstrap, load)
    java = JavaSender(cluster.bootstrap, topic, tmp_path, {"batch.size": 200})
    calm = kinds.CALM_SESSION_TIMEOUT_MS
    with ExitStack() as stack:
        stack.callback(free.send_no_more)
        stack.callback(java.kill)
        crews: dict[Fleet, Kind] = {
            stack.enter_context(fleet(cluster.bootstrap, f"{topic}-{kind.name}", [topic], tmp_path, calm)): kind
            for kind in KINDS
        }
        places = [(topic, partition) for partition in range(PARTITIONS)]
        for crew, kind in crews.items():
            crew.wait_until_shared([crew.start(kind)], places)
        free.start()
        java.start()
        for _ in range(3):
            begun = free.acknowledged, len(java.acknowledged)
            assert eventually(
                lambda begun=begun: (
                    free.acknowledged >= begun[0] + RECORDS and len(java.acknowledged) >= begun[1] + RECORDS
                ),
                timeout_seconds=kinds.PATIENCE_SECONDS,
            ), (begun, free.acknowledged, len(java.acknowledged), free.result.failed[:3], java.failed[:3])
            change_id(cluster, topic)
        promised = free.finish()
        java.finish()
        offsets = ConfluentClient(cluster.bootstrap).offsets(topic, range(PARTITIONS))
        ends = {(topic, partition): end for partition, (_, end) in offsets.items()}
        for crew in crews:
            crew.wait_until_processed(ends)
            crew.stop()
            crew.check(ends)
    logs = read_everything(cluster.bootstrap, {topic: PARTITIONS})
    java.check(topic, logs)
    numbers = [int(value) for values in logs.values() for value in values if value.isdigit()]
    assert len(numbers) == len(set(numbers)), "a record of Java's is there twice"
    named = {place: [b"java:%s:" % value if value.isdigit() else value for value in of] for place, of in logs.items()}
    check_sender(load, promised, named)
    state = cluster.wait_until_whole()
    assert all(len(each["isr"]) == 3 for each in state["partitions"] if each["topic"] == topic)


def test_a_reader_of_lineages_takes_a_topic_for_the_same_whatever_its_id(
    cluster: ClusterProcess, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=1)
    name = TopicPartition(topic, 0)
    settings = parse_client_settings({"bootstrap.servers": cluster.bootstrap})
    brokers, later = Brokers(settings), Brokers(settings)
    try:
        first = brokers.partitions(Selection(topics=(topic,)))[name]
        for _ in range(2):
            change_id(cluster, topic)
            assert brokers.partitions(Selection(topics=(topic,))) == {name: first}
        # A task of a query that was planned before the change asks only now.
        assert not later.is_replaced(topic, first)
        assert later.leader_of(name, first)
        delete_topic(cluster.bootstrap, topic)
        create_topic(cluster.bootstrap, topic, partitions=1)
        assert brokers.partitions(Selection(topics=(topic,)))[name] != first
        assert eventually(lambda: later.is_replaced(topic, first))
    finally:
        brokers.close()
        later.close()
