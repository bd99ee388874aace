"""aiokafka against a real broker: the common specification, and its own admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.interop.conftest import Broker
from tests.interop.specification import ClientSpecification
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.records import TOPIC_ALREADY_EXISTS, Record
from tests.support.topics import create_topic


class TestAiokafka(ClientSpecification):
    @pytest.fixture
    def connect(self) -> Callable[[Broker], AiokafkaClient]:
        return lambda broker: AiokafkaClient(broker.bootstrap)


def test_a_topic_is_created_listed_described_and_deleted(broker: Broker, topic_name: Callable[[], str]) -> None:
    name = topic_name()

    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            wanted = NewTopic(name, 3, 1, topic_configs={"retention.ms": "3600000"})
            first = await admin.create_topics([wanted])
            assert [error[:2] for error in first.topic_errors] == [(name, 0)]
            again = await admin.create_topics([wanted])
            assert [error[:2] for error in again.topic_errors] == [(name, TOPIC_ALREADY_EXISTS)]
            assert name in await admin.list_topics()

            (described,) = await admin.describe_topics([name])
            assert sorted(one["partition"] for one in described["partitions"]) == [0, 1, 2]
            (configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            ((_, _, _, _, entries),) = configs.resources
            assert {entry[0]: entry[1] for entry in entries}["retention.ms"] == "3600000"

            await admin.delete_topics([name])
            assert name not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(administer())


def test_one_consumer_reads_several_partitions_and_seeks_back(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=4)
    client = AiokafkaClient(broker.bootstrap)
    client.produce(topic, [Record(b"%d" % number, partition=number % 4) for number in range(400)])
    partitions = [TopicPartition(topic, partition) for partition in range(4)]

    async def read_twice() -> list[dict[int, list[int]]]:
        consumer = client.consumer()
        await consumer.start()
        runs = []
        try:
            consumer.assign(partitions)
            for _ in range(2):
                await consumer.seek_to_beginning(*partitions)
                values: dict[int, list[int]] = {partition: [] for partition in range(4)}
                async with asyncio.timeout(120):
                    while sum(map(len, values.values())) < 400:
                        for partition, messages in (await consumer.getmany(timeout_ms=200)).items():
                            values[partition.partition] += [int(message.value) for message in messages]
                runs.append(values)
        finally:
            await consumer.stop()
        return runs

    expected = {partition: list(range(partition, 400, 4)) for partition in range(4)}
    assert asyncio.run(read_twice()) == [expected, expected]
