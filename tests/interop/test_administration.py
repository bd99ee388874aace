"""Partitions, configuration and log directories through common admin clients and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import ConfigResourceType as PythonResourceType
from kafka.admin import KafkaAdminClient
from kafka.admin import NewPartitions as PythonNewPartitions
from kafka.errors import InvalidPartitionsError, OffsetOutOfRangeError

from tests.interop.conftest import Broker, MakeBroker
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record, RefusedError
from tests.support.topics import create_topic, eventually

MESSAGE_TOO_LARGE = 10
#: The time limit on a busy machine.
PATIENCE_SECONDS = 90


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def alter(admin: AdminClient, resource: ConfigResource) -> None:
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(PATIENCE_SECONDS)


def topic_change(topic: str, **values: str | None) -> ConfigResource:
    """Set keys, with `_` for `.`, or delete those that are None."""
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


def described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    entries: dict[str, ConfigEntry] = future.result(PATIENCE_SECONDS)
    return entries


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        future.result(PATIENCE_SECONDS)
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    return error.code()


def node_id_of(admin: AdminClient) -> str:
    (node_id,) = admin.list_topics(timeout=PATIENCE_SECONDS).brokers
    return str(node_id)


# --- confluent-kafka


def test_confluent_adds_partitions_that_producers_then_find(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    admin = admin_of(broker)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_SECONDS)
    assert eventually(lambda: len(admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions) == 3)
    client = ConfluentClient(broker.bootstrap)
    assert client.produce(topic, [Record(b"x", partition=number) for number in range(3)]) == [(0, 0), (1, 0), (2, 0)]
    for count in (3, 2):
        assert code_of(admin.create_partitions([NewPartitions(topic, count)])[topic]) == KafkaError.INVALID_PARTITIONS
    checked = admin.create_partitions([NewPartitions(topic, 9)], validate_only=True)[topic]
    checked.result(PATIENCE_SECONDS)
    assert len(admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions) == 3
    absent = topic_name()
    unknown = admin.create_partitions([NewPartitions(absent, 3)])[absent]
    assert code_of(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_confluent_changes_a_topic_and_producers_feel_it_at_once(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), retention_ms="5000")
    admin, client = admin_of(broker), ConfluentClient(broker.bootstrap)
    alter(admin, topic_change(topic, max_message_bytes="1000", retention_ms=None))
    entries = described(admin, ResourceType.TOPIC, topic)
    assert (entries["max.message.bytes"].value, entries["max.message.bytes"].source) == ("1000", 1)
    assert entries["retention.ms"].is_default
    assert [synonym.name for synonym in entries["max.message.bytes"].synonyms.values()] == [
        "max.message.bytes",
        "message.max.bytes",
    ]
    with pytest.raises(RefusedError) as refused:
        client.produce(topic, [Record(b"x" * 5000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    alter(admin, topic_change(topic, max_message_bytes=None))
    assert client.produce(topic, [Record(b"x" * 5000)]) == [(0, 0)]
    (invalid,) = admin.incremental_alter_configs([topic_change(topic, retention_ms="soon")]).values()
    assert code_of(invalid) == KafkaError.INVALID_CONFIG
    (unknown,) = admin.incremental_alter_configs([topic_change(topic_name(), retention_ms="5")]).values()
    assert code_of(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_confluent_changes_a_broker_and_reads_back_where_values_come_from(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker(log_retention_hours="24")
    topic = create_topic(broker.bootstrap, topic_name())
    admin = admin_of(broker)
    node_id = node_id_of(admin)

    def change(name: str, value: str) -> ConfigResource:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        return ConfigResource(ResourceType.BROKER, node_id, incremental_configs=[entry])

    alter(admin, change("message.max.bytes", "2000"))
    entries = described(admin, ResourceType.BROKER, node_id)
    assert (entries["message.max.bytes"].value, entries["message.max.bytes"].source) == ("2000", 2)
    assert (entries["log.retention.hours"].value, entries["log.retention.hours"].source) == ("24", 4)
    assert entries["log.dirs"].is_read_only
    assert not entries["message.max.bytes"].is_read_only
    of_topic = described(admin, ResourceType.TOPIC, topic)["max.message.bytes"]
    assert (of_topic.value, of_topic.source) == ("2000", 2)
    with pytest.raises(RefusedError) as refused:
        ConfluentClient(broker.bootstrap).produce(topic, [Record(b"x" * 5000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    with pytest.raises(KafkaException, match=r"Cannot update these configs dynamically: Set\(log\.dirs\)"):
        alter(admin, change("log.dirs", "/elsewhere"))
    broker.restart()
    assert described(admin_of(broker), ResourceType.BROKER, node_id)["message.max.bytes"].value == "2000"


def test_deleted_records_stay_deleted_when_the_broker_is_killed_right_after(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"%d" % number, partition=number % 2) for number in range(20)])
    admin = admin_of(broker)
    wanted = {0: (4, 4), 1: (-1, 10)}
    futures = admin.delete_records([TopicPartition(topic, number, offset) for number, (offset, _) in wanted.items()])
    low = {partition.partition: future.result(PATIENCE_SECONDS).low_watermark for partition, future in futures.items()}
    broker.kill()
    assert low == {number: first for number, (_, first) in wanted.items()}
    broker.start()
    assert client.offsets(topic, [0, 1]) == {0: (4, 10), 1: (10, 10)}
    assert [one.value for one in client.consume(topic, 0, 6, start=4)] == [b"%d" % n for n in range(8, 20, 2)]
    admin = admin_of(broker)
    (beyond,) = admin.delete_records([TopicPartition(topic, 0, 11)]).values()
    assert code_of(beyond) == KafkaError.OFFSET_OUT_OF_RANGE


def test_a_broker_killed_amid_changes_has_the_last_acknowledged_or_the_one_after(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name())
    acknowledged = 1000
    for _ in range(3):
        admin = admin_of(broker)
        for _ in range(5):
            alter(admin, topic_change(topic, retention_ms=str(acknowledged + 1), segment_ms=str(acknowledged + 1)))
            acknowledged += 1
        under_way = topic_change(topic, retention_ms=str(acknowledged + 1), segment_ms=str(acknowledged + 1))
        (future,) = admin.incremental_alter_configs([under_way]).values()
        broker.kill()
        if future.done() and future.exception() is None:
            acknowledged += 1
        broker.start()
        entries = described(admin_of(broker), ResourceType.TOPIC, topic)
        values = [int(entries[name].value or 0) for name in ("retention.ms", "segment.ms")]
        assert values[0] == values[1]
        assert values[0] in (acknowledged, acknowledged + 1)
        acknowledged = values[0]


# --- kafka-python


@pytest.fixture
def python_admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield admin
    admin.close()


def test_kafka_python_administers_a_topic(
    broker: Broker, python_admin: KafkaAdminClient, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    ConfluentClient(broker.bootstrap).produce(topic, [Record(b"x") for _ in range(10)])
    python_admin.create_partitions({topic: 4})
    with pytest.raises(InvalidPartitionsError):
        python_admin.create_partitions({topic: PythonNewPartitions(2)})

    pages = []
    cursor = None
    while True:
        page = python_admin.describe_topic_partitions([topic], response_partition_limit=3, cursor=cursor)
        pages.append([partition["partition_index"] for partition in page["topics"][0]["partitions"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == [[0, 1, 2], [3]]

    def change(incremental: bool, **values: str) -> dict[str, dict[str, str]]:
        configs = {name.replace("_", "."): value for name, value in values.items()}
        resource = PythonConfigResource(PythonResourceType.TOPIC, topic, configs=configs)
        result: dict[str, dict[str, str]] = python_admin.alter_configs([resource], incremental=incremental)
        return result

    def configs() -> dict[str, str]:
        found = python_admin.describe_configs([PythonConfigResource(PythonResourceType.TOPIC, topic)])
        return {name: config["value"] for name, config in found["topic"][topic].items()}

    assert change(True, retention_ms="6000") == {"topic": {topic: "OK"}}
    assert change(False, segment_ms="7000") == {"topic": {topic: "OK"}}
    assert configs() == {"retention.ms": "6000", "segment.ms": "7000"}
    assert "retention.ms" in change(True, retention_ms="never")["topic"][topic]
    python_admin.reset_configs([PythonConfigResource(PythonResourceType.TOPIC, topic, configs=["segment.ms"])])
    assert configs() == {"retention.ms": "6000"}

    assert topic in python_admin.list_config_resources(["TOPIC"])["topic"]
    (of_broker,) = python_admin.describe_log_dirs({topic: [0, 1, 2, 3]})
    (log_dir,) = of_broker["log_dirs"]
    (logs,) = log_dir["topics"]
    sizes = {log["partition_index"]: log["partition_size"] for log in logs["partitions"]}
    assert sorted(sizes) == [0, 1, 2, 3]
    assert sizes[0] > 0
    assert log_dir["total_bytes"] > log_dir["usable_bytes"] > 0

    partition = PythonTopicPartition(topic, 0)
    assert python_admin.delete_records({partition: 3})[partition]["low_watermark"] == 3
    with pytest.raises(OffsetOutOfRangeError):
        python_admin.delete_records({partition: 99})


def test_kafka_python_sees_idempotent_producers(
    broker: Broker, python_admin: KafkaAdminClient, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    producer = ConfluentClient(broker.bootstrap).producer(enable_idempotence=True)
    for _ in range(7):
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
    partition = PythonTopicPartition(topic, 0)
    (state,) = python_admin.describe_producers([partition])[partition].active_producers
    assert (state.producer_epoch, state.last_sequence, state.current_transaction_start_offset) == (0, 6, -1)


# --- aiokafka


def with_aiokafka(broker: Broker, use: Callable[[AIOKafkaAdminClient], Awaitable[None]]) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await use(admin)
        finally:
            await admin.close()

    asyncio.run(run())


def test_aiokafka_administers_a_topic(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), retention_ms="5")
    ConfluentClient(broker.bootstrap).produce(topic, [Record(b"x") for _ in range(10)])

    async def use(admin: AIOKafkaAdminClient) -> None:
        await admin.create_partitions({topic: AioNewPartitions(3)})
        with pytest.raises(aiokafka.errors.InvalidPartitionsError, match="Topic already has 3"):
            await admin.create_partitions({topic: AioNewPartitions(3)})
        wanted = AioConfigResource(AioResourceType.TOPIC, topic, {"segment.ms": "8000"})
        (answer,) = await admin.alter_configs([wanted])
        assert [(code, kind, name) for code, _, kind, name in answer.resources] == [(0, 2, topic)]
        keys = {"segment.ms": None, "retention.ms": None}
        (response,) = await admin.describe_configs(
            [AioConfigResource(AioResourceType.TOPIC, topic, keys)], include_synonyms=True
        )
        ((_, _, _, _, entries),) = response.resources
        found = {entry[0]: (entry[1], entry[3]) for entry in entries}
        # The older request, which aiokafka uses, resets what it does not name.
        assert found["segment.ms"] == ("8000", 1)
        assert found["retention.ms"][1] != 1
        partition = aiokafka.TopicPartition(topic, 0)
        assert await admin.delete_records({partition: RecordsToDelete(before_offset=6)}) == {partition: 6}

    with_aiokafka(broker, use)


# --- the command line


class Tailrace:
    """The `tailrace` command, told where the broker is by its environment."""

    def __init__(self, bootstrap: str) -> None:
        self._environment = {**os.environ, "TAILRACE_BOOTSTRAP": bootstrap}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [EXECUTABLE, *arguments],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def refusal(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert (result.returncode, result.stdout) == (1, "")
        assert "Traceback" not in result.stderr
        return result.stderr

    def configs(self, *owner: str) -> dict[str, tuple[str, str]]:
        lines = self.ok("config", "get", *owner, "--json").splitlines()
        return {found["name"]: (found["value"], found["source"]) for found in map(json.loads, lines)}


@pytest.fixture
def own(make_broker: MakeBroker) -> BrokerProcess:
    return make_broker(num_partitions="2")


def test_the_command_line_changes_topics(own: BrokerProcess) -> None:
    tailrace = Tailrace(own.bootstrap)
    tailrace.ok("topic", "create", "orders", "--config", "retention.ms=5000")
    assert tailrace.ok("topic", "alter", "orders", "--partitions", "4") == "topic 'orders' now has 4 partitions\n"
    changed = tailrace.ok("topic", "alter", "orders", "--set", "segment.ms=6000", "--delete", "retention.ms")
    assert changed.splitlines() == [
        "topic 'orders': segment.ms is now 6000",
        "topic 'orders': retention.ms is no longer set",
    ]
    assert tailrace.configs("topic", "orders") == {"segment.ms": ("6000", "topic")}
    altered = tailrace.ok("topic", "alter", "orders", "--partitions", "5", "--set", "flush.ms=7", "--json")
    assert json.loads(altered) == {"topic": "orders", "partitions": 5, "set": {"flush.ms": "7"}, "deleted": []}
    assert "would not be an increase" in tailrace.refusal("topic", "alter", "orders", "--partitions", "2")
    assert "topic 'nobody' does not exist" in tailrace.refusal("topic", "alter", "nobody", "--partitions", "2")
    assert "topic 'nobody' does not exist" in tailrace.refusal("config", "get", "topic", "nobody")
    assert "retention.ms takes a whole number" in tailrace.refusal(
        "config", "set", "topic", "orders", "retention.ms=soon"
    )
    header, *rows = tailrace.ok("config", "get", "topic", "orders", "--all").splitlines()
    assert header.split() == ["KEY", "VALUE", "SOURCE"]
    assert ["flush.ms", "7", "topic"] in [row.split() for row in rows]
    assert ["max.message.bytes", "1048588", "default"] in [row.split() for row in rows]


def test_the_command_line_changes_brokers_which_a_restart_does_not_undo(own: BrokerProcess) -> None:
    tailrace = Tailrace(own.bootstrap)
    assert tailrace.run("config", "get", "broker-default").stderr == "nothing is set for all brokers\n"
    said = tailrace.ok("config", "set", "broker-default", "log.retention.ms=9000", "message.max.bytes=3000")
    assert said.splitlines()[0] == "all brokers: log.retention.ms is now 9000"
    tailrace.ok("config", "set", "broker", "1", "message.max.bytes=4000")
    own.restart()
    assert tailrace.configs("broker-default") == {
        "log.retention.ms": ("9000", "broker-default"),
        "message.max.bytes": ("3000", "broker-default"),
    }
    set_here = tailrace.configs("broker", "1")
    assert set_here["message.max.bytes"] == ("4000", "broker")
    assert set_here["log.retention.ms"] == ("9000", "broker-default")
    assert set_here["num.partitions"] == ("2", "static")
    assert "auto.create.topics.enable" not in set_here
    tailrace.ok("config", "set", "broker", "1", "--delete", "message.max.bytes")
    assert tailrace.configs("broker", "1")["message.max.bytes"] == ("3000", "broker-default")
    refused = tailrace.refusal("config", "set", "broker", "1", "log.dirs=/elsewhere")
    assert "Cannot update these configs dynamically: Set(log.dirs)" in refused
    assert "tailrace serve --set" in refused
    assert "the cluster has no broker 7; the brokers are: 1" in tailrace.refusal("config", "get", "broker", "7")
