"""kafka-python against a real broker: the common specification, and its own admin client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from tests.interop.conftest import Broker
from tests.interop.specification import ClientSpecification
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.records import Record, RefusedError
from tests.support.topics import create_topic, eventually

OFFSET_OUT_OF_RANGE = 1


@pytest.fixture
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


class TestKafkaPython(ClientSpecification):
    @pytest.fixture
    def connect(self) -> Callable[[Broker], KafkaPythonClient]:
        return lambda broker: KafkaPythonClient(broker.bootstrap)


def test_a_topic_is_created_listed_described_and_deleted(
    admin: KafkaAdminClient, topic_name: Callable[[], str]
) -> None:
    name = topic_name()
    options = {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}
    admin.create_topics({name: options})
    assert eventually(lambda: name in admin.list_topics())

    (described,) = admin.describe_topics([name])
    assert sorted(partition["partition_index"] for partition in described["partitions"]) == [0, 1, 2]
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    modified = admin.describe_configs([resource])["topic"][name]
    assert {key: entry["value"] for key, entry in modified.items()} == {"retention.ms": "3600000"}

    admin.delete_topics([name])
    assert eventually(lambda: name not in admin.list_topics())


def test_a_topic_is_not_created_twice(admin: KafkaAdminClient, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    admin.create_topics([name])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([name])


def test_deleting_an_unknown_topic_says_so(admin: KafkaAdminClient) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics(["never-created"])


def test_an_offset_beyond_the_end_is_reported(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    client = KafkaPythonClient(broker.bootstrap)
    client.produce(topic, [Record(b"only")])
    with pytest.raises(RefusedError) as refused:
        client.consume(topic, 0, 1, start=1000)
    assert refused.value.code == OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("sessions", [True, False])
def test_one_consumer_reads_several_partitions(broker: Broker, topic_name: Callable[[], str], sessions: bool) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=4)
    client = KafkaPythonClient(broker.bootstrap)
    client.produce(topic, [Record(b"%d" % number, partition=number % 4) for number in range(400)])
    consumer = client.consumer(enable_incremental_fetch_sessions=sessions, max_partition_fetch_bytes=500)
    values: dict[int, list[int]] = {partition: [] for partition in range(4)}
    deadline = time.monotonic() + 120
    try:
        assigned = [TopicPartition(topic, partition) for partition in range(4)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        while sum(map(len, values.values())) < 400 and time.monotonic() < deadline:
            for partition, messages in consumer.poll(timeout_ms=200).items():
                values[partition.partition] += [int(message.value) for message in messages]
    finally:
        consumer.close()
    assert values == {partition: list(range(partition, 400, 4)) for partition in range(4)}
