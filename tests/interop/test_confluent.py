"""confluent-kafka against a real broker: the common specification, and what is librdkafka's own."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from tests.interop.conftest import Broker
from tests.interop.specification import ClientSpecification
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_TOPIC_EXCEPTION,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Record,
    RefusedError,
)
from tests.support.topics import create_topic, eventually

#: The time limit on a busy machine.
PATIENCE_SECONDS = 90


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


class TestConfluent(ClientSpecification):
    @pytest.fixture
    def connect(self) -> Callable[[Broker], ConfluentClient]:
        return lambda broker: ConfluentClient(broker.bootstrap)


def test_a_topic_is_created_listed_described_and_deleted(admin: AdminClient, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    config = {"retention.ms": "3600000", "segment.bytes": "1048576"}
    admin.create_topics([NewTopic(name, 4, 1, config=config)])[name].result(PATIENCE_SECONDS)

    assert eventually(lambda: name in admin.list_topics(timeout=PATIENCE_SECONDS).topics)
    listed = admin.list_topics(timeout=PATIENCE_SECONDS).topics[name]
    assert sorted(listed.partitions) == [0, 1, 2, 3]
    brokers = admin.list_topics(timeout=PATIENCE_SECONDS).brokers
    for partition in listed.partitions.values():
        assert partition.leader in brokers
        assert partition.replicas == partition.isrs == [partition.leader]

    resource = ConfigResource(ResourceType.TOPIC, name)
    described = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert described["retention.ms"].value == "3600000"
    assert described["segment.bytes"].value == "1048576"
    assert not described["retention.ms"].is_default
    assert described["max.message.bytes"].value == "1048588"
    assert described["max.message.bytes"].is_default

    admin.delete_topics([name])[name].result(PATIENCE_SECONDS)
    assert eventually(lambda: name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics)


def test_the_cluster_is_described(admin: AdminClient, broker: Broker) -> None:
    cluster = admin.describe_cluster().result(PATIENCE_SECONDS)
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == broker.bootstrap
    assert cluster.controller.id == node.id
    assert cluster.cluster_id
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    assert admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)["num.partitions"].value == "1"


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("no spaces allowed", 1, 1), INVALID_TOPIC_EXCEPTION),
        (NewTopic("zero-partitions", 0, 1), INVALID_PARTITIONS),
        (NewTopic("unknown-config", 1, 1, config={"no.such.key": "1"}), INVALID_CONFIG),
        (NewTopic("bad-config-value", 1, 1, config={"retention.ms": "soon"}), INVALID_CONFIG),
    ],
    ids=["name", "partitions", "config-name", "config-value"],
)
def test_a_topic_that_cannot_be_is_refused(admin: AdminClient, topic: NewTopic, code: int) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])[topic.topic].result(PATIENCE_SECONDS)
    assert refused.value.args[0].code() == code
    assert topic.topic not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_a_topic_is_not_created_twice(admin: AdminClient, broker: Broker, topic_name: Callable[[], str]) -> None:
    name = create_topic(broker.bootstrap, topic_name())
    with pytest.raises(RefusedError) as refused:
        create_topic(broker.bootstrap, name)
    assert refused.value.code == TOPIC_ALREADY_EXISTS


def test_validating_a_topic_creates_nothing(admin: AdminClient, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(PATIENCE_SECONDS)
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_deleting_an_unknown_topic_says_so(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics(["never-created"])["never-created"].result(PATIENCE_SECONDS)
    assert refused.value.args[0].code() == UNKNOWN_TOPIC_OR_PARTITION


def test_asking_about_an_unknown_topic_says_so_and_does_not_create_it(strict_broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": strict_broker.bootstrap, "log_level": 0})
    answer = admin.list_topics("never-created", timeout=PATIENCE_SECONDS).topics["never-created"]
    assert answer.error.code() == UNKNOWN_TOPIC_OR_PARTITION
    assert "never-created" not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_an_offset_beyond_the_end_is_reported(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"only")])
    with pytest.raises(RefusedError, match="out of range"):
        client.consume(topic, 0, 1, start=1000)


def test_the_admin_client_lists_offsets(admin: AdminClient, broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    start_ms = int(time.time() * 1000) - 60_000
    # The largest timestamp is not the last record's.
    times = [start_ms, start_ms + 9000, start_ms + 5000]
    ConfluentClient(broker.bootstrap).produce(topic, [Record(b"x", timestamp_ms=at) for at in times])
    expected = {
        OffsetSpec.earliest(): 0,
        OffsetSpec.latest(): 3,
        OffsetSpec.max_timestamp(): 1,
        OffsetSpec.for_timestamp(start_ms + 1): 1,
    }
    for spec, offset in expected.items():
        partition = TopicPartition(topic, 0)
        assert admin.list_offsets({partition: spec})[partition].result(PATIENCE_SECONDS).offset == offset


def test_headers_may_be_null_and_bytes_may_be_anything(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    client = ConfluentClient(broker.bootstrap)
    every_byte = bytes(range(256))
    record = Record(every_byte, every_byte, (("null", None), ("empty", b""), ("raw", every_byte)))
    client.produce(topic, [record])
    assert [one.content() for one in client.consume(topic, 0, 1)] == [(record.key, record.value, record.headers)]


def test_one_consumer_reads_several_partitions_and_sees_the_end_of_each(
    broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=4)
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"%d" % number, partition=number % 4) for number in range(400)])
    consumer = client.consumer(enable_partition_eof=True)
    values: dict[int, list[int]] = {partition: [] for partition in range(4)}
    ends: set[int] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
        while len(ends) < 4 and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                ends.add(message.partition())
            else:
                values[message.partition()].append(int(message.value()))
    finally:
        consumer.close()
    assert ends == {0, 1, 2, 3}
    assert values == {partition: list(range(partition, 400, 4)) for partition in range(4)}
